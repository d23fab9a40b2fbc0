"""What `search` and `plan` print: the top of the frontier, with a memory bar and where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

import numpy as np

from costmodel.estimate import Estimate
from costmodel.interval import calibrated
from costmodel.layouts import RANK_ORDERS, SCHEDULES, Column, Layouts
from costmodel.problem import Problem
from hardware.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
)
from search.account import account, least_memory
from search.assignment import Balanced
from search.engine import SearchResult
from search.plan import Plan
from search.rules_memory import kept_free

BAR = 6
WIDTH = 120
FORMATS: dict[str, Callable[[float], str]] = {
    "B": format_bytes,
    "s": format_seconds,
    "B/s": format_bandwidth,
    "FLOP/s": format_flops,
    "FLOP": lambda value: f"{format_count(value)}FLOP",
}
COMPUTE = ("gemm", "attention", "elementwise", "kernel_gaps", "recompute")
DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp")
"""Layouts that agree in these are alike: the table shows the best of them."""
ONE_F_ONE_B, INTERLEAVED = SCHEDULES.index("1f1b"), SCHEDULES.index("interleaved")
"""The schedules that vpp tells; only others have a column."""
QUIET = {"vpp": 1, "cp": 1, "ep": 1, "etp": 1}
"""Columns that are left out when every row has this value."""


def title(problem: Problem) -> str:
    """One line that says what was searched."""
    work, cluster = problem.workload, problem.cluster
    return (
        f"{problem.model.name} on {work.gpus} x {cluster.gpu.name} ({cluster.name}), {work.precision}, "
        f"{work.global_batch} sequences of {work.seq_len} tokens a step, profile {problem.profile.name}"
    )


def measure(problem: Problem) -> str:
    """One line that says what MFU is measured against."""
    work, peak = problem.workload, "bf16" if problem.workload.mfu_peak == "bf16" else problem.workload.precision
    said = f"MFU against the dense {peak} peak of {format_flops(problem.peak)}, {work.flops_convention} FLOPs"
    if problem.peak < problem.cluster.gpu.peak[work.precision]:
        said += f"; {work.precision} may pass 100 % (--mfu-peak precision)"
    return said


def report(result: SearchResult, top: int, blocks: str, notes: Iterable[str] = ()) -> str:
    """Title, notes, the best layout for each of the first `top` sets of degrees on the frontier, and the account; the
    frontier is not empty."""
    assert result.estimate is not None
    first, alike = best_of_degrees(result.frontier)
    rows = first[:top]
    layouts, cost = result.frontier.take(rows), result.estimate.take(rows)
    more = {"#": [f"{row + 1}" for row in rows], "alike": [f"+{number}" if number else "" for number in alike[:top]]}
    if any(result.balanced):
        more |= _balanced(result, [result.balanced[row] for row in rows], layouts)
    lines = [title(result.problem), measure(result.problem), _limit(result.problem), *notes]
    lines.append("best layout for each set of degrees; alike: others on the frontier with the same degrees")
    if "balanced" in more:
        lines.append("balanced: the step with stages by CP-SAT against the closed-form split; mixed: explain shows it")
        if "no" in more["balanced"]:
            lines.append("   no: as it was; balanced, it gains nothing or is beaten in both speed and memory")
    lines.append("")
    lines.append(frontier_table(result.problem, layouts, cost, blocks, more))
    if len(first) > top:
        lines.append(
            f"... {len(first) - top:,} more sets of degrees (--top); the file has all {len(result.frontier):,}"
        )
    sure = [line for text in _sure(result) for line in wrap(text, WIDTH)]
    return "\n".join([*lines, *sure, "", account(result)])


def _balanced(result: SearchResult, found: Sequence[Balanced | None], layouts: Layouts) -> dict[str, list[str]]:
    """What balanced stages compute again, and what they gain."""
    sets = [choice.name for choice in result.problem.profile.recompute]
    used = [
        {name for counts in one.assignment.recompute for name, count in zip(sets, counts, strict=True) if count}
        if one
        else {sets[code]}
        for one, code in zip(found, layouts.recompute, strict=True)
    ]
    return {
        "recompute": ["mixed" if len(names) > 1 else "".join(names) for names in used],
        "balanced": [f"{-one.gain:+.1%}" if one else "no" for one in found],
    }


def _limit(problem: Problem) -> str:
    """What memory is held against."""
    return f"memory against {format_bytes(problem.cluster.gpu.usable_memory)} usable{kept_free(problem)}"


def _sure(result: SearchResult) -> Iterator[str]:
    """How far 8 of 10 measured runs lie from their estimates, and how many layouts no runs cover."""
    inside = calibrated(result.problem, result.frontier)
    near = result.problem.profile.interval if inside.any() else result.problem.profile.interval.wider
    time, memory = (
        f"{getattr(near, f'{kind}_low') - 1:+.0%} to {getattr(near, f'{kind}_high') - 1:+.0%}"
        for kind in ("time", "memory")
    )
    wider = int(np.count_nonzero(~inside))
    yield f"8 of 10 runs lie within {time} of the step time and {memory} of the memory" + (
        f"; no measured runs cover {wider:,} of the {len(inside):,} layouts"
        + ", whose ends are wider" * bool(inside.any())
        if wider
        else ""
    )


def best_of_degrees(ranked: Layouts) -> tuple[Column, Column]:
    """The first row of each set of degrees, in order, and how many more rows have the same."""
    degrees = np.stack([getattr(ranked, axis) for axis in DEGREES], axis=1)
    _, first, count = np.unique(degrees, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first)
    return first[order], count[order] - 1


def nothing_fits(result: SearchResult) -> str:
    """Why no layout is feasible: the account, and the least memory that any skeleton needs."""
    least = [line for text in least_memory(result) for line in wrap(text, WIDTH, subsequent_indent="  ")]
    return "\n".join([f"no feasible layout for {title(result.problem)}", account(result), *least])


def frontier_table(
    problem: Problem, layouts: Layouts, estimate: Estimate, blocks: str, more: Mapping[str, list[str]] | None = None
) -> str:
    """One line a layout, ranked; `blocks` are the two characters of the memory bar, `more` further columns."""
    columns = {"#": [f"{row + 1}" for row in range(len(layouts))]}
    columns |= dict(_layout_columns(problem, layouts))
    columns |= dict(_result_columns(problem, estimate, blocks))
    columns |= more or {}
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    gap = "  " if sum(widths.values()) + 2 * len(widths) - 2 <= WIDTH else " "
    if sum(widths.values()) + len(gap) * (len(widths) - 1) > WIDTH:
        del widths["rest"], columns["rest"]
    return "\n".join(_line(row, widths, gap) for row in ([*columns], *zip(*columns.values(), strict=True)))


def _line(cells: Sequence[str], widths: Mapping[str, int], gap: str) -> str:
    left = ("recompute", "schedule", "order", "memory")
    return gap.join(
        cell.ljust(width) if name in left else cell.rjust(width)
        for cell, (name, width) in zip(cells, widths.items(), strict=True)
    ).rstrip()


def _layout_columns(problem: Problem, layouts: Layouts) -> Iterator[tuple[str, list[str]]]:
    for axis in ("tp", "pp", "vpp", "dp", "cp", "ep", "etp"):
        values = getattr(layouts, axis)
        if axis not in QUIET or np.any(values != QUIET[axis]):
            yield axis, _integers(values)
    yield "zero", _integers(layouts.zero_stage)
    if np.any(layouts.dp_shard != layouts.dp * layouts.cp):
        yield "shard", _integers(layouts.dp_shard)
    yield "mb", _integers(layouts.micro_batch)
    if np.any(layouts.sequence_parallel != (layouts.tp > 1)):
        yield "sp", _integers(layouts.sequence_parallel)
    sets = zip(layouts.recompute.tolist(), layouts.recompute_layers.tolist(), strict=True)
    yield "recompute", [problem.profile.recompute_name(code, layers) for code, layers in sets]
    if np.any(layouts.schedule != np.where(layouts.vpp > 1, INTERLEAVED, ONE_F_ONE_B)):
        yield "schedule", [SCHEDULES[code] for code in layouts.schedule]
    if np.any(layouts.rank_order != problem.profile.rank_order):
        yield "order", [RANK_ORDERS[code].removeprefix("tp-cp-") for code in layouts.rank_order]


def _result_columns(problem: Problem, estimate: Estimate, blocks: str) -> Iterator[tuple[str, list[str]]]:
    time, step = estimate.time, estimate.step_time
    usable = problem.cluster.gpu.usable_memory
    yield "MFU", [f"{value:.1%}" for value in estimate.mfu]
    yield "tok/s/GPU", [f"{value:,.0f}" for value in estimate.tokens_per_second_per_gpu]
    yield "step", [format_seconds(value) for value in step]
    yield "memory", [_bar(value, usable, blocks) for value in estimate.memory_total]
    compute = sum(getattr(time, part) for part in COMPUTE)
    rest = step - compute - time.communication - time.bubble
    for name, seconds in (("compute", compute), ("comm", time.communication), ("bubble", time.bubble), ("rest", rest)):
        yield name, [f"{value:.0%}" for value in seconds / step]


def _bar(value: float, usable: float, blocks: str) -> str:
    filled = round(BAR * min(1.0, value / usable))
    return f"{blocks[0] * filled}{blocks[1] * (BAR - filled)} {format_bytes(value):>8}"


def _integers(values: Column) -> list[str]:
    return [f"{value}" for value in values]


def decision(found: Plan, blocks: str) -> Iterator[str]:
    """The lines that `plan` prints: the choices with their reasons, then the plan beside the search's best."""
    yield title(found.problem)
    yield ""
    widths = [
        max(len(text) for text in texts) for texts in zip(*((c.name, c.choice) for c in found.choices), strict=True)
    ]
    for number, step in enumerate(found.choices, 1):
        left = f"{number}. {step.name:<{widths[0]}}  {step.choice:<{widths[1]}}  "
        yield from wrap(step.because, WIDTH, initial_indent=left, subsequent_indent=" " * len(left))
    known = [name for name, one in (("the plan", found.layout), ("the search's best", found.best)) if one is not None]
    if not known:
        return
    cost = found.cost
    yield ""
    yield ", ".join(f"#{number} is {name}" for number, name in enumerate(known, 1))
    yield frontier_table(found.problem, found.layouts, cost, blocks)
    if len(known) == 2:
        slower, usual = cost.step_time[0] / cost.step_time[1] - 1.0, (cost.mfu[0], cost.mfu[1])
        memory = [format_bytes(float(need)) for need in cost.memory_total]
        yield ""
        yield f"the rule of thumb costs {slower:.1%} of step time: MFU {usual[0]:.1%} against {usual[1]:.1%}, " + (
            f"memory {memory[0]} against {memory[1]}"
        )
