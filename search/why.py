"""Why a request has no layout: the smallest set of rules in conflict, with their numbers, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from textwrap import wrap

from costmodel.estimate import estimate
from costmodel.interval import default_margin
from costmodel.layouts import CODED, RANK_ORDERS, SCHEDULES, Layouts
from costmodel.memory import Memory
from costmodel.problem import Problem
from costmodel.profile import Profile
from hardware.units import format_bytes, parse
from search.conflict import Candidates, Witness, conflict, leaner
from search.engine import SearchResult, search
from search.fixes import Fix, fixes
from search.possible import ALL_RANKS
from search.rules import skeleton_rules
from search.rules_memory import kept_free
from search.skeletons import check_batch, first_rejection
from search.space import SearchSpace, no_world_size
from search.table import WIDTH

TERMS = 3
"""Terms of memory that are named."""
SHOWN = ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "zero_stage", "micro_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The rules in conflict, in documented order, and the fixes; or, if the request has layouts, their search.

    No candidate of the request keeps all rules of `core`; leave out any one of them, and there is one that does. The
    core is `world_size` alone where the request has no candidate: no degrees of it multiply to the GPUs.
    """

    problem: Problem
    space: SearchSpace
    core: tuple[tuple[str, str], ...] = ()
    fixes: tuple[Fix, ...] = ()
    result: SearchResult | None = None

    @property
    def feasible(self) -> bool:
        """Whether the request has a layout."""
        return not self.core


def why(problem: Problem, space: SearchSpace, *, threads: int | None = None) -> Why:
    """Explain a request. Raises InputError if no possible dp divides the global batch."""
    if because := no_world_size(problem, space):
        core = (("world_size", because),)
        return Why(problem=problem, space=space, core=core, fixes=tuple(fixes(problem, space, ())))
    grid, outer = space.grid(problem.workload.gpus), skeleton_rules(problem, space)
    check_batch(problem, grid, first_rejection(grid, outer), outer)
    candidates = Candidates(problem, leaner(space))
    leanest = candidates.leanest(candidates.legal)
    if leanest and leanest.broken == 0:
        return Why(problem=problem, space=space, result=search(problem, space, threads=threads))
    rules = conflict(candidates)
    reasons = {rule.name: "" if rule.name == "memory" else rule.explain(witness.row) for rule, witness in rules}
    if leanest:
        reasons["memory"] = _memory(problem, leanest)
    return Why(problem=problem, space=space, core=tuple(reasons.items()), fixes=tuple(fixes(problem, space, rules)))


def _memory(problem: Problem, leanest: Witness) -> str:
    """What the leanest layout needs, and its largest terms."""
    usable = format_bytes(problem.cluster.gpu.usable_memory) + kept_free(problem, leanest.need)
    cost = estimate(problem, Layouts.of(**{axis.name: leanest.row[axis.name] for axis in fields(Layouts)}))
    terms = {term.name.replace("_", " "): float(getattr(cost.memory, term.name)[0]) for term in fields(Memory)}
    largest = sorted(terms, key=lambda name: -terms[name])[:TERMS]
    shown = ", ".join(f"{name} {format_bytes(terms[name])}" for name in largest)
    layout = spell(problem.profile, leanest.row)
    return f"the leanest layout ({layout}) needs {format_bytes(leanest.need)} of {usable}: {shown} ..."


def spell(profile: Profile, row: Mapping[str, int]) -> str:
    """A layout in one line; degrees of 1 are left out beyond tp, pp and dp."""
    always = ("tp", "pp", "dp", "zero_stage", "micro_batch")
    degrees = [f"{_label(axis)} {row[axis]}" for axis in SHOWN if axis in always or row[axis] > 1]
    if row["zero_stage"] and row["dp_shard"] != row["dp"] * row["cp"]:
        degrees.append(f"{_label('dp_shard')} {row['dp_shard']}")
    again = profile.recompute_name(row["recompute"], row["recompute_layers"])
    names = [f"recompute {again}", SCHEDULES[row["schedule"]]]
    if row["rank_order"] != profile.rank_order:
        names.append(RANK_ORDERS[row["rank_order"]])
    sequence = ["sequence-parallel"] if row["sequence_parallel"] else []
    return ", ".join([*degrees, *names, *sequence])


def _label(axis: str) -> str:
    known = {"zero_stage": "ZeRO", "micro_batch": "micro-batch"}
    return known.get(axis, axis.upper() if len(axis) <= 3 else axis.replace("_", "-"))


def named(profile: Profile, axis: str, value: object) -> object:
    """An axis value as it is typed and stored: names for codes."""
    if not isinstance(value, int):
        return value
    if axis == "recompute":
        return profile.recompute[value].name
    if axis in CODED:
        return CODED[axis][value]
    if axis == "sequence_parallel":
        return bool(value)
    return "all" if axis == "dp_shard" and value == ALL_RANKS else value


def change_of(fix: Fix) -> dict[str, tuple[object, object]]:
    """The change of a fix in names, (from, to); `from` is a list if the request allows several values."""
    profile, found = fix.problem.profile, {}
    for name, (before, after) in fix.change.items():
        values = [named(profile, name, value) for value in before] if isinstance(before, tuple) else [before]
        found[name] = (values[0] if len(values) == 1 else values, named(profile, name, after))
    return found


def to_json(it: Why) -> dict[str, object]:
    """The documented object of `why --json`, in SI units; with `layouts` and `best` if the request is feasible."""
    found: dict[str, object] = {
        "feasible": it.feasible,
        "core": [{"rule": rule, "because": because} for rule, because in it.core],
        "fixes": [
            {
                "change": {name: list(change) for name, change in change_of(fix).items()},
                "layout": _axes(fix.problem.profile, fix.layout),
                "memory_headroom": fix.memory_headroom,
            }
            for fix in it.fixes
        ],
    }
    if it.result and it.result.estimate is not None:
        best, headroom = it.result.frontier.take([0]), float(it.result.estimate.memory_headroom[0])
        found["layouts"] = it.result.account.feasible
        found["best"] = {"layout": _axes(it.problem.profile, best), "memory_headroom": headroom}
    return found


def _axes(profile: Profile, layout: Layouts) -> dict[str, object]:
    return {axis: named(profile, axis, value) for axis, value in layout.row(0).items()}


def report(it: Why) -> Iterator[str]:
    """The lines that `why` prints below the title."""
    if it.result and it.result.estimate is not None:
        best, cost = it.result.frontier.row(0), it.result.estimate
        yield f"{it.result.account.feasible:,} of {it.result.account.candidates:,} candidates are feasible"
        headroom = format_bytes(float(cost.memory_headroom[0]))
        yield from _wrapped(f"best: {spell(it.problem.profile, best)}: MFU {cost.mfu[0]:.1%}, {headroom} to spare")
        return
    which = "these rules together" if len(it.core) > 1 else "this rule"
    yield f"no layout is feasible: no candidate keeps {which}"
    for rule, because in it.core:
        yield from _wrapped(f"  {rule}: {because}")
    shown = "what makes it feasible, each with a layout that fits (search finds the best)"
    yield shown if it.fixes else "no change of one input or of up to three axes makes it feasible"
    for fix in it.fixes:
        changes = ", ".join(_change(name, *change) for name, change in change_of(fix).items())
        speed = f"MFU {fix.mfu:.1%}, {format_bytes(fix.memory_headroom)} to spare"
        yield f"  {changes}"
        yield from _wrapped(f"      a layout that fits: {spell(fix.problem.profile, fix.layout.row(0))}: {speed}")


def _wrapped(line: str) -> list[str]:
    """A line in lines of WIDTH characters, the later ones indented further."""
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap(
        line.strip(), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}   ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def arguments_of(fix: Fix) -> dict[str, object]:
    """The change of a fix as arguments of the command line, by name; the global batch stays what it was."""
    found: dict[str, object] = {}
    if {"gpus", "seq_len"} & set(fix.change):
        found["global_batch"] = fix.problem.workload.global_batch
    for name, (_, after) in change_of(fix).items():
        typed = str(after).lower() if name == "sequence_parallel" else after
        typed = _gib(after) if name == "headroom" else typed
        found["zero" if name == "zero_stage" else name] = typed
    margin = fix.problem.workload.memory_margin
    return found | ({"memory_margin": margin} if margin != default_margin(fix.problem) else {})


def _gib(size: object) -> str:
    """Bytes as they are typed: "100.4 GiB"."""
    return f"{float(str(size)) / parse('1 GiB'):.5g} GiB"


def _change(name: str, before: object, after: object) -> str:
    """ "PP 4 -> 8"; a switch is "any-domain" alone."""
    if isinstance(after, bool):
        return _label(name) if after else f"no {_label(name)}"
    shown = ",".join(map(str, before)) if isinstance(before, list) else before
    if name == "headroom":
        return f"headroom {format_bytes(float(str(before)))} -> {_gib(after)}"
    return f"{'GPUs' if name == 'gpus' else _label(name)} {shown} -> {after}"
