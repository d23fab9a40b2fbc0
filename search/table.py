"""What `search` prints: the top of the frontier, with a memory bar and where the time goes, and the account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from textwrap import wrap

import numpy as np

from costmodel.estimate import Estimate
from costmodel.layouts import SCHEDULES, Column, Layouts
from costmodel.problem import Problem
from hardware.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_decimal_bytes,
    format_flops,
    format_seconds,
)
from search.engine import SearchResult
from search.explain import Explanation
from search.plan import Plan
from search.rules_memory import floors, memory_floor
from search.scored import Row

BAR = 12
WIDTH = 120
FORMATS: dict[str, Callable[[float], str]] = {
    "B": format_decimal_bytes,
    "s": format_seconds,
    "B/s": format_bandwidth,
    "FLOP/s": format_flops,
    "FLOP": lambda value: f"{format_count(value)}FLOP",
}
COMPUTE = ("gemm", "attention", "elementwise", "kernel_gaps", "recompute")
QUIET = {"vpp": 1, "cp": 1, "ep": 1, "etp": 1}
"""Columns that are left out when every row has this value."""


def title(problem: Problem) -> str:
    """One line that says what was searched."""
    work, cluster = problem.workload, problem.cluster
    return (
        f"{problem.model.name} on {work.gpus} x {cluster.gpu.name} ({cluster.name}), {work.precision}, "
        f"{work.global_batch} sequences of {work.seq_len} tokens a step, profile {problem.profile.name}"
    )


def report(result: SearchResult, top: int, blocks: str) -> str:
    """Title, the first `top` rows of the frontier, and the account; the frontier is not empty."""
    assert result.estimate is not None
    rows = np.arange(min(top, len(result.frontier)))
    layouts, cost = result.frontier.take(rows), result.estimate.take(rows)
    usable = format_bytes(result.problem.cluster.gpu.usable_memory)
    more = len(result.frontier) - len(rows)
    lines = [title(result.problem), f"memory against {usable} usable; time on the slowest stage", ""]
    lines.append(frontier_table(result.problem, layouts, cost, blocks))
    lines += [f"... {more:,} more on the frontier"] if more else []
    return "\n".join([*lines, "", account(result)])


def frontier_table(problem: Problem, layouts: Layouts, estimate: Estimate, blocks: str) -> str:
    """One line a layout, ranked; `blocks` are the two characters of the memory bar."""
    columns = {"#": [f"{row + 1}" for row in range(len(layouts))]}
    columns |= dict(_layout_columns(problem, layouts))
    columns |= dict(_result_columns(problem, estimate, blocks))
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    return "\n".join(_line(row, widths) for row in ([*columns], *zip(*columns.values(), strict=True)))


def _line(cells: Sequence[str], widths: Mapping[str, int]) -> str:
    left = ("recompute", "schedule", "memory")
    return "  ".join(
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
    yield "recompute", [problem.profile.recompute[code].name for code in layouts.recompute]
    yield "schedule", [SCHEDULES[code] for code in layouts.schedule]


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


def account(result: SearchResult) -> str:
    """The candidates, and the rule under which each one that is not feasible was counted."""
    count = result.account
    lines = [
        f"{count.candidates:,} candidates: {count.feasible:,} feasible, {len(result.frontier):,} on the frontier; "
        f"{count.scored:,} scored, {result.solver.skeletons:,} skeletons by CP-SAT ({result.solver.status})"
    ]
    counted = {rule: number for rule, number in count.pruned.items() if number} | {"bounded": count.bounded}
    width = len(f"{max(counted.values()):,}")
    lines += [f"  {number:>{width},}  {rule}" for rule, number in counted.items() if number]
    return "\n".join(lines)


def nothing_fits(result: SearchResult) -> str:
    """Why no layout is feasible: the account, and the least memory that any skeleton needs."""
    problem = result.problem
    lines = [f"no feasible layout for {title(problem)}", account(result)]
    if result.account.pruned.get("memory_floor"):
        grid = result.space.grid(problem.workload.gpus)
        need = sum(part.megabytes(*(grid[axis] for axis in part.columns)) for part in floors(problem))
        least = {axis: int(column[np.argmin(need)]) for axis, column in grid.items()}
        degrees = " ".join(f"{axis} {value}" for axis, value in least.items())
        lines.append(f"memory_floor: even {degrees} {memory_floor(problem).explain(least)}")
    return "\n".join(lines)


def explanation(it: Explanation) -> Iterator[str]:
    """The lines that `explain` prints."""
    yield title(it.problem)
    yield from _summary(it)
    for number, step in enumerate(it.steps, 1):
        yield ""
        yield f"{number}. {step.name}: {step.verdict}"
        yield from _rows([row for row in step.rows if _shown(it, row)])
    yield ""
    yield "Where the time goes"
    step_time = float(it.cost.step_time[0])
    for part in fields(it.cost.time):
        seconds = it.time(part.name)
        if seconds:
            name, share = part.name.replace("_", " "), seconds / step_time
            yield f"   {name:<18}{format_seconds(seconds):>10}{share:7.1%}  {part.metadata['meaning']}"


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


def _summary(it: Explanation) -> Iterator[str]:
    """The layout, then its speed; a layout that breaks a rule has none."""
    cost, row = it.cost, it.layout.row(0)
    degrees = [f"{axis} {value}" for axis, value in row.items() if axis not in ("recompute", "schedule")]
    recompute = it.problem.profile.recompute[it.axis("recompute")].name
    yield ", ".join([*degrees, f"recompute {recompute}", SCHEDULES[it.axis("schedule")]]).replace("_", " ")
    yield f"layers per stage: {_runs(it.layers)}"
    if it.place:
        yield f"rank {it.place[0]} of {it.place[1]} on the frontier"
    for rule, because in it.broken:
        yield f"not feasible, {rule}: {because}"
    if it.feasible:
        speed = f"{cost.tokens_per_second_per_gpu[0]:,.0f} tokens/s per GPU"
        yield f"MFU {cost.mfu[0]:.1%}, {speed}, step {format_seconds(float(cost.step_time[0]))}"


def _runs(layers: Sequence[int]) -> str:
    """(5, 5, 5, 4) -> "3 x 5, 4"."""
    found: list[tuple[int, int]] = []
    for count in layers:
        times = found.pop()[0] if found and found[-1][1] == count else 0
        found.append((times + 1, count))
    return ", ".join(f"{times} x {count}" if times > 1 else f"{count}" for times, count in found)


def _shown(it: Explanation, row: Row) -> bool:
    """A layout that does not fit has no MFU."""
    return bool(it.cost.memory_headroom[0] >= 0) or not row.name.startswith("MFU")


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    """Hand, corrected and model side by side, then the formula; under it why the hand figure is corrected."""
    cells = [(row.name, *(figure(value, row.unit) for value in (row.hand, row.corrected, row.model))) for row in rows]
    head = ("", "hand", "corrected", "model")
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    left = sum(widths) + 2 * len(widths) + 3
    for cell, text in ((head, "formula"), *zip(cells, (row.formula for row in rows), strict=True)):
        first, *more = wrap(text, WIDTH - left) or [""]
        figures = [f"{value:>{width}}" for value, width in zip(cell[1:], widths[1:], strict=True)]
        yield "  ".join([f"   {cell[0]:<{widths[0]}}", *figures, first]).rstrip()
        yield from (" " * left + part for part in more)
        if (row := next((row for row in rows if row.name == cell[0] and row.noted), None)) is not None:
            yield from wrap(row.why, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def figure(value: float | None, unit: str) -> str:
    """A figure of `explain` in three digits with its unit, counts in full; empty where there is none."""
    if value is None:
        return ""
    if unit in FORMATS:
        return FORMATS[unit](value)
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}" if abs(value) < 1e6 else f"{value:,.0f}"
