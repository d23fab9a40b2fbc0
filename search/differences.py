"""What `explain --against` and `--neighbours` print: differences in words to act on, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hardware.units import format_bytes, format_seconds
from search.assignment import closed_form, recomputed
from search.compare import Comparison, Difference, shown
from search.explain import headline, layout_json, stages_json
from search.narrative import folded, runs, same

TERMS = 5
"""Terms of time and of memory that are told."""


def against(it: Comparison) -> Iterator[str]:
    """The lines about another layout."""
    yield ""
    if it.same:
        yield "Against the same layout: nothing differs"
        return
    yield f"Against {changes(it) or 'the same degrees'}"
    yield from _stages(it)
    for rule, because in it.broken:
        yield from _line("not feasible", f"{rule}: {because}")
    if it.headroom[1] >= 0 and it.headroom[0] >= 0:
        step = [format_seconds(float(cost.step_time[0])) for cost in it.costs]
        yield from _line("step", f"{step[1]} ({it.slower:+.1%}); was {step[0]}")
        yield from (line for one in it.time[:TERMS] for line in _line(_name(one), _said(one)))
    room = [format_bytes(headroom) for headroom in it.headroom]
    yield from _line("headroom", f"{room[1]}; was {room[0]}")
    yield from (line for one in it.memory[:TERMS] for line in _line(_name(one), _said(one)))


def around(found: Sequence[tuple[str, Comparison]]) -> Iterator[str]:
    """The lines about the layouts one axis away."""
    yield ""
    balanced = any(it.stages[0] for _, it in found)
    yield "Neighbours, one axis away; DP takes up the rest" + "; stages balanced by CP-SAT, as above" * balanced
    width = max((len(name) for name, _ in found), default=0) + 2
    for name, it in found:
        if it.broken:
            rule, because = it.broken[0]
            yield from _line(name, f"{rule}: {because}", width)
            continue
        why = "".join(f"; {_name(one)} {_said(one)}" for one in it.driving)
        yield from _line(name, f"step {it.slower:+.1%}, headroom {format_bytes(it.headroom[1])}{why}", width)


def _stages(it: Comparison) -> Iterator[str]:
    """Where the stages of either layout come from, and what they hold, if not of both from the closed form."""
    if it.stages == (None, None):
        return
    how = ["balanced by CP-SAT" if given else "as the closed form has them" for given in it.stages]
    yield from _line("stages", f"{how[1]}; were {how[0]}" if how[0] != how[1] else f"both {how[0]}")
    both = [
        given or closed_form(it.problem, layout) for given, layout in zip(it.stages, (it.before, it.after), strict=True)
    ]
    for name, (was, now) in (
        ("layers per stage", [runs(one.layers) for one in both]),
        ("computed again", [same(recomputed(it.problem, one)) for one in both]),
    ):
        yield from _line(name, f"{now}; was {was}" if now != was else f"{now}, as here")


def changes(it: Comparison) -> str:
    """What the second layout has that the first has not: "tp 4, dp 16"."""
    before, after = it.before.row(0), it.after.row(0)
    differ = [axis for axis in after if before[axis] != after[axis]]
    return ", ".join(f"{axis} {shown(it.problem, axis, after[axis])}" for axis in differ)


def to_json(it: Comparison) -> dict[str, object]:
    """The other layout, its figures, and the terms that differ, in SI units; `more` is its figure less the first's."""
    return {
        "layout": layout_json(it.problem, it.after),
        **stages_json(it.problem, it.stages[1] or closed_form(it.problem, it.after)),
        "feasible": not it.broken,
        "violations": [{"rule": rule, "because": because} for rule, because in it.broken],
        **{name: float(column[0]) for name, column in headline(it.costs[1]).items()},
        "slower": it.slower,
        "time_terms": [_difference(one) for one in it.time],
        "memory_terms": [_difference(one) for one in it.memory],
    }


def _difference(one: Difference) -> dict[str, object]:
    return {"name": one.name, "before": one.before, "after": one.after, "more": one.more, "because": one.because}


def _said(one: Difference) -> str:
    """ "+410 ms: DP 64 over leaf, one NIC a ring; was DP 8 inside nvlink"."""
    size = format_seconds(abs(one.more)) if one.unit == "s" else format_bytes(abs(one.more))
    return f"{'+' if one.more > 0 else '-'}{size}" + (f": {one.because}" if one.because else "")


def _name(one: Difference) -> str:
    """The term in words; of communication only what overlap does not hide counts."""
    name = one.name.replace("_parallel", "-parallel traffic").replace("_", " ")
    return f"exposed {name}" if "traffic" in name else name


def _line(name: str, text: str, width: int = 33) -> Iterator[str]:
    yield from folded(text, f"   {name:<{width}}", " " * (width + 3))
