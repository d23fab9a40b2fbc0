"""What each command does: it reads what was typed, calls, prints, and returns the exit code; what is heavy is imported
when a command needs it."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hardware.errors import InfeasibleError, InputError
from search.files import failure, output_path, verb, whole, write_text
from search.options import Parser, add_explain
from search.terminal import progress, put, say
from search.typed import command_line

if TYPE_CHECKING:
    from search.engine import SearchResult
    from search.inputs import Chosen

DONE, INFEASIBLE = 0, 3


def run_search(arguments: Namespace) -> int:
    """Print the best layouts of a search and write its frontier."""
    from search import defaults, grounds, table
    from search.engine import search
    from search.explain import problem_json
    from search.inputs import inputs, read_problem, read_space

    outputs = _outputs(arguments)
    problem = read_problem(arguments)
    space = read_space(arguments, problem)
    settings, doubts = defaults.settings(arguments, problem), grounds.doubts(problem)
    with progress() as show:
        result = search(
            problem,
            space,
            threads=arguments.threads,
            keep_all=len(outputs) > 1,
            bounds=not arguments.no_bounds,
            progress=show,
        )
    if arguments.balance and result.estimate is not None:
        from search.balance import balance_frontier

        with progress("layouts balanced") as show:
            result, tally = balance_frontier(result, arguments.top, show)
        say(tally.said())
    told = {"problem": problem_json(problem), "inputs": settings, "warnings": doubts}
    if result.estimate is None:
        if arguments.json:
            put(json.dumps(told | _json(result), indent=2))
        left = [f"{path} is still that of an earlier search" for path in outputs if path.exists()]
        ask = f"what to change says: {command_line('why', vars(arguments))}"
        raise InfeasibleError("\n".join([table.nothing_fits(result), *defaults.said(settings), *left, ask]))
    failed = failure(lambda: _write(outputs, result, inputs(arguments) | {"settings": settings, "warnings": doubts}))
    if arguments.json:
        put(json.dumps(told | _json(result), indent=2))
    else:
        put(table.report(result, arguments.top, _blocks(), defaults.said(settings)))
    for doubt in doubts:
        say(doubt)
    if failed is not None:
        raise failed
    return DONE


def _json(result: SearchResult) -> dict[str, object]:
    """What a search came to, as `search --json` has it; an empty frontier where nothing is feasible."""
    from search.frontier import rows_of

    cost = result.estimate
    return {
        "space": asdict(result.account),
        "solver": asdict(result.solver),
        "frontier": [] if cost is None else rows_of(result.problem, result.frontier, cost, result.balanced),
        "seconds": dict(result.seconds),
    }


def _outputs(arguments: Namespace) -> list[Path]:
    """The file of the frontier, and that of every feasible layout if it is wanted."""
    read = (arguments.model, arguments.cluster, arguments.profile, arguments.space)
    names = [name for name in (arguments.output, arguments.all) if name is not None]
    paths = [output_path(name, "Parquet", read) for name in names]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError(f"{arguments.all}: --all and -o name the same file")
    return paths


def _write(outputs: Sequence[Path], result: SearchResult, given: Mapping[str, object]) -> None:
    from search.frontier import to_parquet

    done = [verb(path) for path in outputs]
    with whole(*outputs) as files:
        for file, every in zip(files, (False, True), strict=False):
            to_parquet(file, result, given, every=every)
    for path, how, count in zip(outputs, done, (len(result.frontier), result.account.feasible), strict=False):
        unbalanced = ", their stages split by the closed form" if result.balanced and path is not outputs[0] else ""
        say(f"{how} {path}: {count:,} layouts{unbalanced}")


def run_explain(arguments: Namespace) -> int:
    """Print one layout, typed or of a file, in six steps, or what it was asked about it."""
    _check_explain(arguments)
    from search import narrative
    from search.explain import explain, to_json
    from search.inputs import stored_layout, typed_axes, typed_layout

    stored = _is_file(arguments)
    chosen = stored_layout(arguments.model, arguments.rank or 1) if stored else typed_layout(arguments)
    found = explain(
        chosen.problem, chosen.layout, chosen.space, chosen.stages,
        place=chosen.place, among=chosen.among, keep=arguments.keep_recompute,
    )  # fmt: skip
    lines, more = _others(arguments, chosen)
    if arguments.json:
        put(json.dumps(to_json(found) | more, indent=2))
    else:
        asked = arguments.stages or arguments.keep_recompute
        stages = list(narrative.balanced(found)) if asked else []
        alone = bool(lines or asked)
        put("\n".join([*narrative.heading(found), *stages, *lines] if alone else narrative.explanation(found)))
    for warning in found.warnings:
        say(warning)
    for rule, because in found.broken if arguments.json else ():
        say(f"not feasible, {rule}: {because}")
    if not (found.feasible or stored):
        say(f"what to change says: {command_line('why', vars(arguments) | typed_axes(chosen))}")
    return DONE if found.feasible else INFEASIBLE


def _others(arguments: Namespace, chosen: Chosen) -> tuple[list[str], dict[str, object]]:
    """The lines and the JSON about the layout that is set against the chosen one, and about its neighbours."""
    from search import differences
    from search.compare import compare, compare_alike, neighbours
    from search.inputs import other_layout
    from search.space import load_space

    lines, more = list[str](), dict[str, object]()
    problem, layout = chosen.problem, chosen.layout
    space = load_space(problem, tp_across_domains=chosen.space.tp_across_domains)
    if arguments.against is not None:
        path = arguments.model if _is_file(arguments) else None
        other = other_layout(chosen, arguments.against, path)
        if isinstance(arguments.against, int):
            it = compare(problem, layout, other.layout, space, (chosen.stages, other.stages))
        else:
            it = compare_alike(problem, layout, other.layout, space, chosen.stages)
        lines += differences.against(it)
        more["against"] = differences.to_json(it)
    if arguments.neighbours:
        with progress("neighbours") as show:
            found = neighbours(problem, layout, space, chosen.stages, show)
        lines += differences.around(found)
        more["neighbours"] = [{"change": name} | differences.to_json(it) for name, it in found]
    return lines, more


def run_why(arguments: Namespace) -> int:
    """Print which rules leave nothing, and what to change."""
    from search import table
    from search.inputs import read_problem, read_space
    from search.why import arguments_of, report, to_json, why

    problem = read_problem(arguments)
    found = why(problem, read_space(arguments, problem, strict=False), threads=arguments.threads)
    put(json.dumps(to_json(found), indent=2) if arguments.json else "\n".join([table.title(problem), *report(found)]))
    if not found.feasible:
        say(f"no feasible layout: {', '.join(rule for rule, _ in found.core)}")
    for fix in found.fixes[:1]:
        say(f"the first change: {command_line('search', vars(arguments) | arguments_of(fix))}")
    return DONE if found.feasible else INFEASIBLE


def run_plan(arguments: Namespace) -> int:
    """Print a layout by rule of thumb beside the best."""
    from search import table
    from search.inputs import read_problem
    from search.plan import plan, to_json
    from search.space import load_space

    problem = read_problem(arguments)
    found = plan(problem, load_space(problem, arguments.space), threads=arguments.threads)
    if arguments.json:
        put(json.dumps(to_json(found), indent=2))
    elif found.layout is not None or found.best is not None:
        put("\n".join(table.decision(found, _blocks())))
    if found.layout is None:
        say(f"the decision process finds no layout: {found.choices[-1].because}")
    if found.best is None:
        say(f"no feasible layout; what to change says: {command_line('why', vars(arguments))}")
    return DONE if found.layout is not None or found.best is not None else INFEASIBLE


def run_sweep(arguments: Namespace) -> int:
    """Run many searches and write what training takes on each."""
    from search.sweep.command import sweep

    return sweep(arguments)


def run_report(arguments: Namespace) -> int:
    """Write a frontier or a sweep as a page."""
    from search.report.page import page

    how = verb(output_path(arguments.output, "HTML", [arguments.file]))
    write_text(arguments.output, page(arguments.file))
    say(f"{how} {arguments.output}")
    return DONE


def run_validate(arguments: Namespace) -> int:
    """Print how far predictions of measured runs are off."""
    from search import measured

    if arguments.predictions is not None:
        how = verb(output_path(arguments.predictions, "CSV", [arguments.runs, arguments.profile]))
    with progress("runs") as show:
        score, found = measured.score(arguments.runs, arguments.trust, arguments.profile, show)
    failed: InputError | None = None
    if not found:
        failed = InputError(f"{arguments.runs or 'the shipped runs'}: no row can be predicted")
    elif arguments.predictions is not None:
        failed = failure(lambda: write_text(arguments.predictions, measured.predictions_csv(found)))
        if failed is None:
            say(f"{how} {arguments.predictions}: {len(found):,} predictions")
    if arguments.json:
        put(json.dumps(score, indent=2))
    elif found:
        put("\n".join(measured.report(score, found, arguments.trust)))
    if failed is not None:
        raise failed
    return DONE


def run_calibrate(arguments: Namespace) -> int:
    """Write a profile fitted to measured runs, and print what it rests on."""
    from search import calibrated

    path = output_path(arguments.output, "TOML", [arguments.runs, arguments.profile])
    if path.suffix != ".toml":
        raise InputError(f"{path}: a profile is read from a .toml file; name one")
    how = verb(path)
    if arguments.unfitted:
        text, said = calibrated.fitted_anew(arguments.runs, arguments.profile)
    else:
        with progress("fits") as show:
            text, said = calibrated.fitted(arguments.runs, arguments.profile, show)
    failed = failure(lambda: write_text(arguments.output, text))
    put("\n".join(said))
    if failed is not None:
        raise failed
    say(f"{how} {arguments.output}; use it with --profile {arguments.output}")
    return DONE


def _check_explain(arguments: Namespace) -> None:
    """FILE --rank K stands alone; everything else needs a model, a cluster and the number of GPUs."""
    if not _is_file(arguments):
        names = {"MODEL": arguments.model, "CLUSTER": arguments.cluster, "--gpus": arguments.gpus}
        missing = [name for name, value in names.items() if value is None]
        if missing:
            raise InputError(f"explain: the following arguments are required: {', '.join(missing)}")
        return
    if arguments.cluster is not None and not _may_be_stored(arguments):
        raise InputError(
            f"--rank {arguments.rank}: is a row of FILE, and {arguments.model} is a model; drop --rank, or explain FILE"
        )
    parser = Parser()
    add_explain(parser)
    usual = vars(parser.parse_args([]))
    given = [name for name, value in usual.items() if vars(arguments)[name] != value and name != "given"]
    shown = {"cluster": "CLUSTER", "family": "--as"}
    more = [shown.get(name, f"--{name.replace('_', '-')}") for name in given if name not in EITHER]
    if arguments.model is None or more:
        raise InputError(
            f"explain FILE [--rank K] takes all from the file; drop {', '.join(more)}"
            if more
            else "explain: --rank K needs the frontier FILE"
        )


EITHER = ("model", "rank", "json", "stages", "keep_recompute", "against", "neighbours")
"""Arguments of `explain` that go with a file, too."""


def _is_file(arguments: Namespace) -> bool:
    """Whether `explain` is asked about a row of a file that search wrote; its first row if none is named."""
    return arguments.rank is not None or (arguments.cluster is None and _may_be_stored(arguments))


def _may_be_stored(arguments: Namespace) -> bool:
    """Whether what stands in the model's place looks like such a file."""
    named = Path(str(arguments.model))
    return named.suffix == ".parquet" or (named.suffix not in (".toml", ".json") and named.is_file())


def run_list(arguments: Namespace) -> int:
    """Print what is shipped."""
    from search.listing import print_list

    print_list(arguments.kind, *arguments.names, as_json=arguments.json)
    return DONE


def _blocks() -> str:
    """The full and the empty cell of a bar, in what stdout can show."""
    return "█░" if (sys.stdout.encoding or "").lower().startswith("utf") else "#."
