"""What was typed, or stored in a frontier -> the problem, the space and the one layout that `explain` is asked for."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import TYPE_CHECKING, Any

from costmodel.interval import default_margin
from costmodel.layouts import CODED, Layouts
from costmodel.model import Model, load_model, model_names
from costmodel.problem import Problem, Workload, default_global_batch
from costmodel.profile import Profile, load_profile
from hardware.catalog import load_cluster
from hardware.cluster import Cluster
from hardware.errors import InputError
from search.files import beside
from search.fitting import data_degree, usual_etp, usual_schedule
from search.options import COLUMNS
from search.possible import ALL_RANKS
from search.space import WORLD, SearchSpace, load_space
from search.terminal import say

if TYPE_CHECKING:
    from search.assignment import Assignment
    from search.frontier import Stored

NAMES = ("model", "family", "cluster", "profile", "space", "any_domain")
"""The arguments that, beside the workload and the limits, say what is searched."""

WORK = (
    "gpus", "seq_len", "global_batch", "precision", "grad_dtype", "moments_dtype", "expert_load", "routed_nodes",
    "flops_convention", "mfu_peak", "headroom", "memory_margin",
)  # fmt: skip
"""Fields of Workload that can be typed."""

EXPERTS = {"expert_load": 1.0, "routed_nodes": 0}
"""Fields that only a model with experts looks at, and the values that say nothing."""

AMONG = {"frontier": "on the frontier", "feasible": "of all feasible layouts, by MFU"}
"""What the rows of a file are, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """One layout (a table of one row) of a problem, the space whose rules hold, its rank and how many there are, and
    `among` which it stands."""

    problem: Problem
    space: SearchSpace
    layout: Layouts
    place: tuple[int, int] | None = None
    among: str = ""
    stages: Assignment | None = None
    """What the file's row says of its stages, where they are not the closed form's."""


def read_problem(arguments: Namespace) -> Problem:
    """The problem that the arguments describe; defaults come from the model and the profile. Raises InputError."""
    model, cluster = load_model(arguments.model, arguments.family), load_cluster(arguments.cluster)
    profile = load_profile(arguments.profile).on(cluster.gpu)
    if arguments.seq_len is None and not (arguments.model in model_names() or arguments.model.endswith(".toml")):
        length = f"sequences of {model.seq_len:,} tokens, as a config.json does not tell the length in pre-training"
        say(f"{length}; --seq-len sets it")
    check_experts([model], arguments)
    return problem_of(model, cluster, profile, {name: getattr(arguments, name) for name in WORK})


def check_experts(models: Sequence[Model], arguments: Namespace) -> None:
    """Raises InputError for what was typed about experts where no model has any; what changes nothing may be typed."""
    if any(model.is_moe for model in models):
        return
    names = list(dict.fromkeys(model.name for model in models))
    for name, usual in EXPERTS.items():
        value = getattr(arguments, name)
        if value not in (None, usual):
            raise InputError(f"{name} {value:g}: {' and '.join(names)} {'have' if names[1:] else 'has'} no experts")


def problem_of(model: Model, cluster: Cluster, profile: Profile, given: Mapping[str, Any]) -> Problem:
    """The problem of what was given by the names of Workload's fields; None, or nothing, takes the default of the
    model, the profile or the number of GPUs. Raises InputError where it does not go together."""
    known = {name: value for name, value in given.items() if value is not None}
    length = known.get("seq_len", model.seq_len)
    usual: dict[str, Any] = {
        "seq_len": length,
        "global_batch": default_global_batch(known["gpus"], length),
        "grad_dtype": profile.grad_dtype,
        "moments_dtype": profile.moments_dtype,
        "routed_nodes": model.routed_nodes,
    }
    problem = Problem(model=model, cluster=cluster, profile=profile, workload=Workload(**usual | known))
    if "memory_margin" in known:
        return problem
    return replace(problem, workload=replace(problem.workload, memory_margin=default_margin(problem)))


def read_space(arguments: Namespace, problem: Problem, *, strict: bool = True) -> SearchSpace:
    """The space that the arguments name, limited to the axis values that were typed. Raises InputError.

    Without `strict` the limits may hold degrees that the rules reject.
    """
    limits = {column: getattr(arguments, option.replace("-", "_")) for option, column in COLUMNS.items()}
    return load_space(problem, arguments.space, limits, tp_across_domains=arguments.any_domain, strict=strict)


def inputs(arguments: Namespace) -> dict[str, object]:
    """What the provenance keeps of the arguments, so that `stored_layout` can read the same problem again."""
    return {name: getattr(arguments, name) for name in NAMES}


def typed_layout(arguments: Namespace) -> Chosen:
    """The layout that was typed; what was left out is 1, derived, or the profile's choice.

    Raises InputError, with the numbers, if the degrees do not multiply to the number of GPUs or if a value is
    impossible whatever the others are.
    """
    problem = read_problem(arguments)
    axes = _typed_axes(arguments, problem.profile)
    profile = problem.profile
    tp, pp, cp = (axes.setdefault(axis, 1) for axis in ("tp", "pp", "cp"))
    axes["dp"] = data_degree(problem, axes)
    axes.setdefault("sequence_parallel", int(tp > 1 and profile.sequence_parallel))
    axes.setdefault("schedule", usual_schedule(profile, pp, axes.get("vpp", 1)))
    axes.setdefault("rank_order", profile.rank_order)
    axes.setdefault("etp", usual_etp(problem, tp, cp, axes.get("ep", 1)))
    axes.setdefault("zero_stage", _usual_stage(profile, pp))
    axes.setdefault("recompute", profile.recompute_code(profile.default_recompute))
    return _chosen(problem, arguments.space, Layouts.of(**axes), any_domain=arguments.any_domain)


def typed_axes(chosen: Chosen) -> dict[str, object]:
    """Every axis of a layout by the name of its argument, as it would be typed; dp_shard only where it is a part."""
    row, profile = chosen.layout.row(0), chosen.problem.profile
    shown: dict[str, object] = row | {
        "recompute": profile.recompute[row["recompute"]].name,
        **{axis: names[row[axis]] for axis, names in CODED.items()},
        "sequence_parallel": "true" if row["sequence_parallel"] else "false",
        "dp_shard": None if row["dp_shard"] == row["dp"] * row["cp"] else row["dp_shard"],
        "recompute_layers": row["recompute_layers"] or None,
    }
    return {option.replace("-", "_"): shown[column] for option, column in COLUMNS.items()}


def stored_layout(path: str, rank: int) -> Chosen:
    """Row `rank` of a frontier file, on the problem that its provenance describes.

    Raises InputError if the file has no such row, or if an input has changed since the file was written.
    """
    from search.frontier import damage, read_frontier

    stored = read_frontier(path)
    if rank > len(stored.rows):
        raise InputError(f"{path}: has {len(stored.rows)} rows, none of rank {rank}")
    with damage(path):
        return _chosen_of(stored, rank)


def other_layout(chosen: Chosen, wanted: int | Mapping[str, int | str], path: str | None) -> Chosen:
    """What is set against the chosen layout: row `wanted` of its file, or the chosen one with axes changed.

    Raises InputError where there is no such row, or the changed degrees do not multiply to the GPUs.
    """
    from search.compare import changed

    if isinstance(wanted, int):
        if path is None:
            raise InputError(f"--against {wanted}: a row needs the frontier FILE; else give AXIS=VALUE")
        return stored_layout(path, wanted)
    problem, typed = chosen.problem, ",".join(f"{axis}={value}" for axis, value in wanted.items())
    try:
        axes = {axis: _code(problem.profile, axis, value) for axis, value in wanted.items()}
        return _chosen(problem, "default", changed(problem, chosen.layout, axes), any_domain=True)
    except InputError as error:
        raise InputError(f"--against {typed}: {error}") from None


def check_rows(stored: Stored) -> None:
    """Raises InputError for a frontier with no rows, or one that `explain` would refuse; what needs inputs that are
    gone or have changed is not looked at."""
    from search.frontier import axes_of
    from search.stage_rows import KEY, TOLD
    from search.stage_rows import stored as stored_stages

    if not stored.rows:
        raise InputError(f"{stored.path}: has no rows")
    gpus = stored.provenance["workload"]["gpus"]
    for row in stored.rows:
        degrees = [row[axis] for axis in WORLD]
        if min(degrees) < 1 or prod(degrees) != gpus:
            asked = " x ".join(f"{axis} {row[axis]}" for axis in WORLD)
            raise InputError(f"row {row['rank']}: {asked} does not make {gpus} GPUs")
    _check_inputs(stored)
    try:
        problem = _problem_of(stored)
    except InputError:
        return
    rows = [axes_of(row, problem.profile) for row in stored.rows]
    limits: dict[str, set[int | str]] = {axis.name: {row[axis.name] for row in rows} for axis in fields(Layouts)}
    limits["dp_shard"] = {"all" if it["dp_shard"] == it["dp"] * it["cp"] else it["dp_shard"] for it in rows}
    load_space(problem, limits=limits)
    known = {}
    for axes, row in zip(rows, stored.rows, strict=True):
        known[(*(axes[axis] for axis in KEY), *(str(row[name]) for name in TOLD), row["balance_gain"] > 0)] = axes, row
    for axes, row in known.values():
        stored_stages(problem, Layouts.of(**axes), row)


def _chosen_of(stored: Stored, rank: int) -> Chosen:
    from search.frontier import axes_of
    from search.stage_rows import stored as stored_stages

    _check_inputs(stored)
    problem, given = _problem_of(stored), stored.provenance["inputs"]
    row, place = stored.rows[rank - 1], (rank, len(stored.rows))
    layout, space = Layouts.of(**axes_of(row, problem.profile)), beside(given["space"], stored.path)
    chosen = _chosen(problem, space, layout, any_domain=given["any_domain"], place=place)
    among = AMONG[stored.provenance.get("rows", "frontier")]
    return replace(chosen, among=among, stages=stored_stages(problem, layout, row))


def _check_inputs(stored: Stored) -> None:
    """Raises InputError for inputs that no search wrote so."""
    from search.frontier import digest

    given: Mapping[str, Any] = stored.provenance["inputs"]
    if digest(stored.provenance["workload"]) != stored.provenance["sha256"]["workload"]:
        raise InputError(f"{stored.path}: damaged: its workload is not the one that was searched")
    for name in NAMES:
        kind = bool if name == "any_domain" else str
        if not isinstance(given.get(name), kind) and (name, given.get(name)) != ("family", None):
            raise InputError(f"{stored.path}: damaged: its input {name} is {given.get(name)!r}")


def _problem_of(stored: Stored) -> Problem:
    """The problem that was searched. Raises InputError if an input is gone or has changed."""
    from search.frontier import fingerprint

    given = stored.provenance["inputs"]
    model = given["model"] if given["model"] in model_names() else beside(given["model"], stored.path)
    cluster = load_cluster(beside(given["cluster"], stored.path))
    problem = Problem(
        model=load_model(model, given.get("family")),
        cluster=cluster,
        profile=load_profile(beside(given["profile"], stored.path)).on(cluster.gpu),
        workload=Workload(**stored.provenance["workload"]),
    )
    for part in ("model", "cluster", "profile"):
        if fingerprint(getattr(problem, part)) != stored.provenance["sha256"][part]:
            changed = f"{part} {given[part]} has changed since this file was written"
            raise InputError(f"{stored.path}: {changed}; search again")
    return problem


def _chosen(
    problem: Problem, space: str, layout: Layouts, *, any_domain: bool, place: tuple[int, int] | None = None
) -> Chosen:
    """The layout with the space that holds it alone. Raises InputError for values that are never possible."""
    limits: dict[str, tuple[int | str, ...]] = {axis: (value,) for axis, value in layout.row(0).items()}
    if layout.dp_shard[0] == layout.dp[0] * layout.cp[0]:
        limits["dp_shard"] = ("all",)
    single = load_space(problem, space, limits, tp_across_domains=any_domain)
    return Chosen(problem=problem, space=single, layout=layout, place=place)


def _typed_axes(arguments: Namespace, profile: Profile) -> dict[str, int]:
    axes = {}
    for option, column in COLUMNS.items():
        value = getattr(arguments, option.replace("-", "_"))
        if value not in (None, "all"):
            axes[column] = _code(profile, column, value)
    return axes


def _code(profile: Profile, column: str, value: int | str) -> int:
    if column == "recompute":
        return profile.recompute_code(str(value))
    if column == "dp_shard" and value == "all":
        return ALL_RANKS
    if column in CODED:
        names = CODED[column]
        if value not in names:
            raise InputError(f"unknown {column} {value!r}; known: {', '.join(names)}")
        return names.index(str(value))
    return int(value)


def _usual_stage(profile: Profile, pp: int) -> int:
    allowed = profile.zero_stages if pp == 1 else profile.zero_stages_with_pp
    return max((stage for stage in allowed if stage <= profile.default_zero_stage), default=min(allowed))
