"""One search of a sweep: a unit of work that stands alone, whichever thread, process or machine does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from costmodel.problem import Problem
from hardware.errors import InputError
from search.account import least_memory
from search.engine import SearchResult, search
from search.frontier import digest, fingerprint, rows_of
from search.space import SearchSpace
from search.version import VERSION

Result = Mapping[str, Any]
"""What a unit comes to, as JSON holds it: `rows` of the frontier, or the `reason` if there are none."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One combination: names as typed, `settings` as (key path, value as typed), and what is searched.

    Where the combination itself is wrong (a part of a node, say) there is no problem, but a `reason`.
    """

    model: str
    cluster: str
    settings: tuple[tuple[str, str], ...]
    gpus: int
    global_batch: int
    problem: Problem | None = None
    space: SearchSpace | None = None
    reason: str = ""

    @cached_property
    def key(self) -> str:
        """SHA-256 of all that the result depends on."""
        if self.problem is None:
            return digest([VERSION, self.model, self.cluster, self.settings, self.gpus, self.global_batch, self.reason])
        parts = [self.problem.model, self.problem.cluster, self.problem.profile, self.problem.workload, self.space]
        return digest([VERSION, *map(fingerprint, parts)])


def run(unit: Unit, threads: int) -> Result:
    """Search the unit; as exhaustive as `search`, and the same result wherever it runs."""
    if unit.problem is None or unit.space is None:
        return {"rows": [], "reason": unit.reason}
    try:
        found = search(unit.problem, unit.space, threads=threads)
    except InputError as error:  # degrees that never go together, at this size
        return {"rows": [], "reason": str(error)}
    if found.estimate is None:
        return {"rows": [], "reason": _reason(found)}
    return {"rows": rows_of(unit.problem, found.frontier, found.estimate), "reason": ""}


def _reason(found: SearchResult) -> str:
    """Why nothing fits, in one line: too little memory at best, or the rule that rejects most."""
    for line in least_memory(found):
        return line
    pruned = found.account.pruned
    rule = max(pruned, key=lambda name: pruned[name]) if pruned else "space"
    share = pruned.get(rule, 0) / max(1, found.account.candidates)
    return f"{rule}: rejects {share:.0%} of {found.account.candidates:,} candidates, and other rules the rest"
