"""What `explain` prints: the layout, its six steps, the chapter's figures beside the model's, where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from textwrap import wrap

from costmodel.interval import uncovered
from costmodel.layouts import CODED, RANK_ORDERS, SCHEDULES
from costmodel.problem import Problem
from hardware.units import format_bytes, format_decimal_bytes, format_seconds
from search import grounds
from search.assignment import Assignment, layout_string, recomputed
from search.explain import Explanation
from search.placement import order, orders
from search.possible import recompute_choices
from search.scored import Row, Step
from search.table import FORMATS, WIDTH, measure, title

UNITS = "hand, corrected: the chapter's formulas, 1 GB = 1e9 B; model: this estimate, 1 GiB = 1024^3 B"
UNFIT = "it does not fit, so no speed is given: every time of the model, and what follows from it, is '-'"


def heading(it: Explanation) -> Iterator[str]:
    """What is explained, the layout and its speed."""
    yield title(it.problem)
    if it.fits:
        yield measure(it.problem)
    yield from _summary(it)


def explanation(it: Explanation) -> Iterator[str]:
    """The lines that `explain` prints."""
    yield from heading(it)
    yield ""
    yield UNITS
    for number, step in enumerate(it.steps, 1):
        yield ""
        yield f"{number}. {step.name}: {step.verdict}"
        yield from _rows([row for row in step.rows if _shown(row, it.fits)], _tags(it, step), fits=it.fits)
    if it.fits:
        yield from _time(it)
    yield from balanced(it)


def balanced(it: Explanation) -> Iterator[str]:
    """The stages as CP-SAT balances them, and what that gains."""
    found = it.balanced
    if found is None:
        return
    stages, usual, cost = found.assignment, found.usual, found.cost
    other = "the closed-form stages" if it.given else "the layers above"
    yield ""
    yield f"Stages balanced by CP-SAT: slowest stage {format_seconds(stages.seconds)} a micro-batch"
    yield from _wrapped("proven", _proof(it, stages))
    yield from _wrapped("layers per stage", _placed(it.problem, stages))
    yield from _wrapped("computed again", same(recomputed(it.problem, stages)))
    step, room = format_seconds(float(cost.step_time[0])), format_bytes(float(cost.memory_headroom[0]))
    was = f"step {format_seconds(float(usual.step_time[0]))}, headroom {format_bytes(float(usual.memory_headroom[0]))}"
    if not found.chosen:
        gain = f"{other} are as good: step {step}, headroom {room}"
    elif usual.memory_headroom[0] < 0:
        gain = f"step {step}, headroom {room}; {other} do not fit"
    else:
        gain = f"step {step} ({-found.gain:+.1%}), headroom {room}; {other}: {was}"
    yield from _wrapped("gain", gain)
    yield from _wrapped("Megatron layout", layout_string(stages, it.problem.model.mtp_layers))


def _proof(it: Explanation, stages: Assignment) -> str:
    """What is proven of these stages, and what is not."""
    sets = it.problem.profile.recompute
    names = [sets[code].name for code in recompute_choices(it.problem, it.axis("recompute"))]
    split = "no split of the layers" + " into alike virtual stages" * (it.axis("vpp") > 1)
    if SCHEDULES[it.axis("schedule")] == "dualpipe":
        split += " within one of the closed form's on each stage"
    over = f"{split} and no choice of {listed(names)} for each of them"
    if it.keep:
        over = f"{split}, with recompute {_asked(it)},"
    faster = "has a faster slowest stage"
    if stages.gap >= 1e-5:
        faster = f"has a slowest stage faster by more than {stages.gap:.1%}"
    return f"{over} {faster}; not that the step is the fastest"


def listed(names: Sequence[str]) -> str:
    """ "none, selective or full"."""
    return " or ".join([*([", ".join(names[:-1])] if names[1:] else []), *names[-1:]])


def same(texts: Iterable[str]) -> str:
    """What stages have, equal ones told once: "stages 1-2, 4: 2 none, 1 full; stage 3: 3 none"."""
    where: dict[str, list[int]] = {}
    for stage, text in enumerate(texts, 1):
        where.setdefault(text, []).append(stage)
    if len(where) == 1:
        return f"{next(iter(where))} on every stage"
    return "; ".join(f"stage{'s' * (len(stages) > 1)} {_ranges(stages)}: {text}" for text, stages in where.items())


def _ranges(numbers: Sequence[int]) -> str:
    """(1, 2, 3, 5) -> "1-3, 5"."""
    ends: list[list[int]] = []
    for number in numbers:
        if ends and ends[-1][1] == number - 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ends)


def folded(text: str, first: str = "", rest: str = "") -> list[str]:
    """The text in lines that break at spaces alone: what a user may paste back stays whole."""
    return wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def _wrapped(name: str, text: str) -> Iterator[str]:
    yield from folded(text, f"   {name:<18}", " " * 21)


def _time(it: Explanation) -> Iterator[str]:
    """The terms of the step time, what they would take at the speed of light, and what they rest on."""
    grounds_of = {part.name: it.grounds[f"time_{part.name}"] for part in fields(it.cost.time) if it.time(part.name)}
    yield ""
    yield f"Where the time goes{'at light speed':>29}  rests on"
    for term, basis in grounds_of.items():
        figures = _seconds(it, term.replace("_", " "), it.time(term), basis.speed_of_light or 0.0)
        yield from wrap(grounds.said(basis), WIDTH, initial_indent=f"{figures}  ", subsequent_indent=" " * 50)
    yield _seconds(
        it, "step", float(it.cost.step_time[0]), sum(basis.speed_of_light or 0.0 for basis in grounds_of.values())
    )


def _seconds(it: Explanation, name: str, seconds: float, light: float) -> str:
    share = seconds / float(it.cost.step_time[0])
    return f"   {name:<18}{format_seconds(seconds):>10}{share:7.1%}{format_seconds(light) if light else '-':>10}"


def _tags(it: Explanation, step: Step) -> dict[str, str]:
    """The tag of each term of memory, by the name of its row."""
    if step.name != "memory verification":
        return {}
    terms = (term.name for term in fields(it.cost.memory) if it.memory(term.name))
    return {term.replace("_", " "): grounds.tag(it.grounds[f"memory_{term}"]) for term in terms}


def _summary(it: Explanation) -> Iterator[str]:
    """The layout, then its speed; a layout that does not fit has none."""
    cost, row = it.cost, it.layout.row(0)
    degrees = [
        f"{axis.replace('_', ' ')} {value}"
        for axis, value in row.items()
        if axis not in ("recompute", "recompute_layers", *CODED)
    ]
    yield from folded(", ".join([*degrees, f"recompute {_asked(it)}", SCHEDULES[it.axis("schedule")]]), rest="   ")
    yield from _stages(it)
    yield from folded(f"ranks: {_ranks(it)}", rest="   ")
    if it.place:
        yield f"rank {it.place[0]} of {it.place[1]} {it.among}"
    for rule, because in it.broken:
        yield f"not feasible, {rule}: {because}"
    if it.fits:
        speed = f"{cost.tokens_per_second_per_gpu[0]:,.0f} tokens/s per GPU"
        might = "" if it.feasible else "were it allowed: "
        yield f"{might}MFU {cost.mfu[0]:.1%}, {speed}, step {format_seconds(float(cost.step_time[0]))}"
        yield from _sure(it)
    else:
        yield UNFIT


def _asked(it: Explanation) -> str:
    """The layout's recomputation: "full in 3 layers of each stage"."""
    layers = it.axis("recompute_layers")
    return it.problem.profile.recompute_name(it.axis("recompute"), layers) + " layers of each stage" * (layers > 0)


def _stages(it: Explanation) -> Iterator[str]:
    """What each stage holds, as the figures have it."""
    said = f"layers per stage: {_placed(it.problem, it.assignment)}"
    if it.given:
        said += f"; computed again: {same(recomputed(it.problem, it.given))}"
        said += f"; balanced by CP-SAT: step {-it.gain:+.1%} against the closed-form split"
    yield from folded(said, rest="   ")


def _placed(problem: Problem, found: Assignment) -> str:
    """Layers of each stage, and where the MTP modules are: "15 x 4, 1, the last + 1 MTP module"."""
    pp, depths = len(found.stages), problem.model.mtp_layers
    place = found.mtp % pp
    last = "the last" if place == pp - 1 else f"stage {place + 1}"
    return runs(found.layers) + (f", {last} + {_depths(depths)}" if depths else "")


def _sure(it: Explanation) -> Iterator[str]:
    """Where the truth lies with 80 %, and why that is wide where no measured runs cover the layout."""
    ends = {name: float(getattr(it.bounds, name)[0]) for name in it.bounds.__dataclass_fields__}
    steps, sizes = (
        " to ".join(show(ends[f"{name}_{end}"]) for end in ("low", "high"))
        for name, show in (("step_time", format_seconds), ("memory", format_bytes))
    )
    because = uncovered(it.problem, it.layout)
    yield f"8 of 10 runs: step {steps}, memory {sizes}" + (", not calibrated:" if because else "")
    yield from (f"   {reason}" for reason in because)


def _ranks(it: Explanation) -> str:
    """The links that each axis spans, and what the other order of the ranks would change."""
    said = order(it.problem, it.layout)
    if not it.fits or it.axis("pp") == 1 or it.axis("dp") == 1:
        return said
    steps, own = orders(it.problem, it.layout, it.stages), RANK_ORDERS[it.axis("rank_order")]
    more = {name: seconds / steps[own] - 1.0 for name, seconds in steps.items() if name != own}
    told = [f"{name} {f'step {share:+.1%}' if abs(share) >= 5e-4 else 'as fast'}" for name, share in more.items()]
    return "; ".join([said, ", ".join([f"order {own}", *told])])


def _depths(count: int) -> str:
    return "1 MTP module" if count == 1 else f"{count} MTP modules"


def runs(layers: Sequence[int]) -> str:
    """(5, 5, 5, 4) -> "3 x 5, 4"."""
    found: list[tuple[int, int]] = []
    for count in layers:
        times = found.pop()[0] if found and found[-1][1] == count else 0
        found.append((times + 1, count))
    return ", ".join(f"{times} x {count}" if times > 1 else f"{count}" for times, count in found)


def _shown(row: Row, fits: bool) -> bool:
    """Whether a row says more than that something is 0; what does not fit has no MFU."""
    return any((row.hand, row.corrected, row.model)) and (fits or not row.name.startswith("MFU"))


def _rows(rows: Sequence[Row], tags: Mapping[str, str], *, fits: bool) -> Iterator[str]:
    """Hand, corrected and model side by side, tags if there are any, the formulas; under it why hand is corrected."""
    head = ["", "hand", "corrected", "model", *["rests on"] * bool(tags)]
    cells = [
        [row.name, figure(row.hand, row.unit), figure(row.corrected, row.unit), _model(row, fits)]
        + [tags.get(row.name, "")] * bool(tags)
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    left = sum(widths) + 2 * len(widths) + 3
    yield _line(head, widths, "formula")
    for cell, row in zip(cells, rows, strict=True):
        first, *more = wrap(_formula(row), WIDTH - left) or [""]
        yield _line(cell, widths, first)
        yield from (" " * left + part for part in more)
        if row.noted:
            yield from wrap(row.why, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _line(cells: Sequence[str], widths: Sequence[int], formula: str) -> str:
    figures = [f"{value:>{width}}" for value, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([f"   {cells[0]:<{widths[0]}}", *figures, formula]).rstrip()


def _model(row: Row, fits: bool) -> str:
    return "-" if row.speed and not fits and row.model is not None else model_figure(row.model, row.unit)


def _formula(row: Row) -> str:
    """The hand formula and, where it is another, the one that gives the model's figure."""
    own = row.model_formula
    return f"{row.formula}; model: {own}" if own and own != row.formula else row.formula


def figure(value: float | None, unit: str) -> str:
    """A hand figure in three digits with its unit, bytes in powers of 1000 as textbooks write them, counts in full;
    empty where there is none."""
    return _figure(value, unit, FORMATS | {"B": format_decimal_bytes})


def model_figure(value: float | None, unit: str) -> str:
    """A figure of the model, in the same way but for bytes, which are in powers of 1024."""
    return _figure(value, unit, FORMATS | {"B": format_bytes})


def _figure(value: float | None, unit: str, formats: Mapping[str, Callable[[float], str]]) -> str:
    if value is None:
        return ""
    if unit in formats:
        return formats[unit](value)
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}" if abs(value) < 1e6 else f"{value:,.0f}"
