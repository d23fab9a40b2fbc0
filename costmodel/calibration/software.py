"""What a run says of its software: how old it is, what it overlaps, how fp8 is scaled."""

from __future__ import annotations

import re
from collections.abc import Mapping

NEWEST = 26.0 + 6.0 / 12.0
"""Release, in years since 2000, from which on the published speeds of one layout stand still (June 2026)."""
DEDUPLICATED = 25.0 + 7.0 / 12.0
"""Release from which on a token crosses the network once per node: DeepSeek-V3 on H100 with 25.05 fits a plain
all-to-all and is a quarter too slow for one that knows nodes."""


def software_of(row: Mapping[str, str]) -> dict[str, object]:
    """The fields of a Workload that follow from `release` and `overlap_flags`.

    A release is YY.MM, or YY.MM.PP for a patch half a month later; a later one, or another text, counts as the newest.
    """
    flags, release = row.get("overlap_flags", "").lower(), _years(row.get("release", ""))
    early = release < DEDUPLICATED and not re.search(r"deepep|hybridep", flags)
    return {
        "software_age": max(0.0, NEWEST - release),
        "expert_overlap": bool(re.search(r"\bep overlap\b(?! off)|moe_a2a_overlap=true", flags)),
        "tensor_overlap": bool(re.search(r"\basync ?tp\b", flags)),
        "plain_dispatch": early or "alltoall dispatcher" in flags,
        "fp8_scaling": "row" if re.search(r"fp8row|rowwise", flags) else "tensor",
    }


def _years(release: str) -> float:
    """Years since 2000."""
    found = re.fullmatch(r"(\d\d)\.(\d\d)(?:\.(\d+))?", release)
    if not found:
        return NEWEST
    year, month, patch = (float(part or 0) for part in found.groups())
    return year + (month + 0.5 * min(patch, 1.0)) / 12.0
