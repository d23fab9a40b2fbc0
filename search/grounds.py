"""What an estimate rests on, in words and as JSON: tags, sources, and what nobody has measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from costmodel.basis import Basis, Rate
from costmodel.problem import Problem
from costmodel.profile import Profile

COUNTED = "counted"
"""In a tag's place where no rate is used."""
IMPORTANT = 0.1
"""Share of the step time, or of memory, from which a term on assumed rates is warned of."""


def tag(basis: Basis) -> str:
    """The tag of a term."""
    return basis.tag or COUNTED


def said(basis: Basis) -> str:
    """ "fitted: 54 runs of 6 sources (gemm)": the tag of a term with the source of the weakest rate, and its name."""
    rate = basis.weakest
    if rate is None:
        return f"{COUNTED}: shapes and number formats"
    return f"{rate.provenance.tag}: {rate.provenance.source} ({short(rate)})"


def short(rate: Rate) -> str:
    """ "time.gemm" -> "gemm", "gpu.gemm.bf16.eta" -> "GPU's gemm bf16 eta"."""
    place, name = rate.name.split(".", 1)
    name = name.removeprefix("levels.").replace(".", " ").replace("_", " ")
    return {"gpu": f"GPU's {name}", "cluster": f"links' {name}"}.get(place, name)


def doubts(problem: Problem, more: Sequence[str] = ()) -> list[str]:
    """One line where no run on this GPU is behind the profile's rates, or there is `more` to say of them."""
    profile, gpu = problem.profile, problem.cluster.gpu.name
    parts = [*([] if profile.covers else [f"no run, {_whence(profile)}"]), *more]
    return [f"rates of profile {profile.name} on {gpu}: {'; '.join(parts)}"] if parts else []


def _whence(profile: Profile) -> str:
    """ "inherited from H100-SXM of profile torchtitan", "21 of 31 assumed"."""
    found = [it for name, it in profile.provenance.items() if name.startswith("time.")]
    if not profile.fitted_on:
        return f"{sum(it.tag == 'assumed' for it in found)} of {len(found)} assumed"
    others = sorted({other[1] for it in found if (other := re.search(r"profile ([^,]+), fitted: ", it.source))})
    of = "".join(f" of profile {other}" for other in others if other != profile.shipped)
    return f"inherited from {', '.join(profile.fitted_on)}{of}"


def warnings(problem: Problem, grounds: Mapping[str, Basis], shares: Mapping[str, float]) -> list[str]:
    """`doubts`, important terms that rest on assumed rates among them.

    `shares` are those of the step time, "time_gemm", and of memory, "memory_weights".
    """
    more = []
    for kind, whole in (("time", "the step"), ("memory", "memory")):
        terms = [
            f"{term.removeprefix(f'{kind}_').replace('_', ' ')} {share:.0%}"
            for term, share in shares.items()
            if term.startswith(f"{kind}_") and share >= IMPORTANT and grounds[term].tag == "assumed"
        ]
        if terms:
            more.append(f"assumed are those of {', '.join(terms)} of {whole}")
    return doubts(problem, more)


def to_json(grounds: Mapping[str, Basis]) -> dict[str, object]:
    """By term: tag, its rates with tag and source, the weakest first, and s at the speed of light (null for memory)."""
    return {
        term: {
            "tag": basis.tag,
            "speed_of_light": basis.speed_of_light,
            "rates": [
                {"name": rate.name, "value": rate.value, "unit": rate.unit, **rate.provenance._asdict()}
                | {"moves": rate.moves}
                for rate in basis.rates
            ],
        }
        for term, basis in grounds.items()
    }
