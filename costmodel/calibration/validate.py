"""Measured runs against predictions: how far off step time, memory, out-of-memory verdicts and rankings are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from costmodel.calibration.predict import Prediction
from costmodel.calibration.runs import Run, Skipped, framework_of, grouped

Score = dict[str, object]
Held = Mapping[str, Mapping[str, bool]]
NEAR = (0.7, 1.4)
"""Need over usable memory within which an out-of-memory verdict is hard."""
LEAST_ROWS, LEAST_SWEEP, LEAST_SWEEPS = 5, 5, 2
TRUST = {"ok": ("ok",), "medium": ("ok", "medium"), "low": ("ok", "medium", "low")}


def validate(
    found: Sequence[Prediction], skipped: Sequence[Skipped], trust: str = "ok", held: Held | None = None
) -> Score:
    """The documented object of `validate --json`; figures are over rows of at least this trust.

    `held` says by a run's id what of it lies in its interval, where that was found without the run's own source; else
    the predictions' own intervals count.
    `megatron` are the step times of Megatron's profile on H100 and newer, models with experts apart.
    """
    rows = [it for it in found if it.run.trust in TRUST[trust]]
    frameworks = grouped(rows, lambda it: framework_of(it.run))
    inside = {it.run.id: within(it) for it in rows} if held is None else held
    by_framework = {name: _both(group) | {"interval": _coverage(group, inside)} for name, group in frameworks.items()}
    ranking = _ranking([it for it in found if it.run.trust in TRUST["medium"]])
    return {
        "rows": len(rows),
        "skipped": [{"id": it.id, "why": it.why, "trust": it.trust} for it in skipped],
        "step_time": _errors(step_time_errors(rows)),
        "memory": _errors(memory_errors(rows)),
        "interval": _coverage(rows, inside),
        "oom": _oom(found),
        "ranking": ranking,
        "macro": {
            "step_time_mape": _macro(frameworks, step_time_errors),
            "memory_mape": _macro(frameworks, memory_errors),
        },
        "megatron": {
            "dense": _errors(step_time_errors(it for it in rows if _recent_megatron(it.run, moe=False))),
            "moe": _errors(step_time_errors(it for it in rows if _recent_megatron(it.run, moe=True))),
        },
        "by_framework": by_framework,
        "by_source": {name: _both(group) for name, group in grouped(rows, lambda it: it.run.source).items()},
    }


def step_time_errors(found: Iterable[Prediction]) -> list[float]:
    """predicted / measured of the runs whose step time was measured."""
    return [it.step_time / it.run.step_time for it in found if it.run.step_time and not it.run.oom]


def memory_errors(found: Iterable[Prediction]) -> list[float]:
    """predicted / measured of the runs whose memory was measured."""
    return [it.memory / it.run.memory for it in found if it.run.memory and not it.run.oom]


def within(it: Prediction) -> dict[str, bool]:
    """Whether what was measured of a run ("time", "memory") lies in its interval."""
    found = {}
    for kind, measured, (low, high) in (
        ("time", it.run.step_time, it.interval), ("memory", it.run.memory, it.memory_interval),
    ):  # fmt: skip
        if measured and not it.run.oom:
            found[kind] = low <= measured <= high
    return found


def _coverage(rows: Iterable[Prediction], held: Held) -> Score:
    """Share of step times and memories that lie in their 80 % interval."""
    parts = [held.get(it.run.id, {}) for it in rows]
    found: Score = {}
    for name, kind in (("step_time", "time"), ("memory", "memory")):
        inside = [part[kind] for part in parts if kind in part]
        found[name] = {"n": len(inside), "coverage": float(np.mean(inside)) if inside else None}
    return found


def _recent_megatron(run: Run, *, moe: bool) -> bool:
    problem = run.problem
    recent = problem.cluster.gpu.architecture not in ("", "ampere")
    return framework_of(run) == "megatron" and recent and problem.model.is_moe == moe


def _both(found: Sequence[Prediction]) -> Score:
    return {"step_time": _errors(step_time_errors(found)), "memory": _errors(memory_errors(found))}


def _errors(ratios: Sequence[float]) -> Score:
    """n, mean, median and 90th percentile of |ratio - 1|, and the mean of ln ratio."""
    if not ratios:
        return {"n": 0, "mape": None, "median_ape": None, "p90_ape": None, "bias": None}
    values = np.asarray(ratios)
    off = np.abs(values - 1.0)
    return {
        "n": len(ratios),
        "mape": float(off.mean()),
        "median_ape": float(np.median(off)),
        "p90_ape": float(np.quantile(off, 0.9)),
        "bias": float(np.log(values).mean()),
    }


def _macro(
    frameworks: dict[str, list[Prediction]], errors: Callable[[Iterable[Prediction]], list[float]]
) -> float | None:
    """Mean over frameworks with enough rows of their mean error."""
    means = [
        np.abs(np.asarray(found) - 1.0).mean() for group in frameworks.values() if len(found := errors(group)) >= 5
    ]
    return float(np.mean(means)) if means else None


def _oom(found: Sequence[Prediction]) -> Score:
    """Verdicts on runs that went out of memory and on measured runs of the same framework and model."""
    failed = {_kind(it.run) for it in found if it.run.oom}
    rows = [it for it in found if _kind(it.run) in failed and (it.run.oom or it.run.step_time)]
    count = {
        "true_positive": sum(it.oom and it.run.oom for it in rows),
        "false_positive": sum(it.oom and not it.run.oom for it in rows),
        "true_negative": sum(not it.oom and not it.run.oom for it in rows),
        "false_negative": sum(not it.oom and it.run.oom for it in rows),
    }
    said, real = count["true_positive"] + count["false_positive"], count["true_positive"] + count["false_negative"]
    near = [it for it in rows if NEAR[0] <= it.need / it.run.problem.cluster.gpu.usable_memory <= NEAR[1]]
    return {
        "n": len(rows),
        **count,
        "precision": count["true_positive"] / said if said else None,
        "recall": count["true_positive"] / real if real else None,
        "near_band": {"n": len(near), "errors": sum(it.oom != it.run.oom for it in near)},
    }


def _kind(run: Run) -> tuple[str, str]:
    return framework_of(run), run.problem.model.name


def _ranking(found: Sequence[Prediction]) -> Score:
    """Within each sweep: what following the model's first choice costs, and Kendall's tau of the two orders."""
    sweeps: dict[tuple[object, ...], list[Prediction]] = defaultdict(list)
    for it in found:
        run, work = it.run, it.run.problem.workload
        if run.sweep and run.step_time and not run.oom:
            key = (run.sweep, work.gpus, work.global_batch, work.seq_len, work.precision)
            sweeps[key].append(it)
    by_framework: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for group in sweeps.values():
        if len(group) >= LEAST_SWEEP:
            by_framework[framework_of(group[0].run)].append((_regret(group), _tau(group)))
    shown = {name: pairs for name, pairs in sorted(by_framework.items()) if len(pairs) >= LEAST_SWEEPS}
    regrets = [regret for pairs in by_framework.values() for regret, _ in pairs]
    means = {
        name: {
            "sweeps": len(pairs),
            "mean_regret": float(np.mean([regret for regret, _ in pairs])),
            "mean_kendall_tau": float(np.mean([tau for _, tau in pairs])),
        }
        for name, pairs in shown.items()
    }
    return {
        "sweeps": len(regrets),
        "mean_regret": float(np.mean([it["mean_regret"] for it in means.values()])) if means else None,
        "p90_regret": float(np.quantile(regrets, 0.9)) if regrets else None,
        "mean_kendall_tau": float(np.mean([it["mean_kendall_tau"] for it in means.values()])) if means else None,
        "by_framework": means,
    }


def _speed(it: Prediction, seconds: float) -> float:
    work = it.run.problem.workload
    return work.global_batch * work.seq_len / (seconds * work.gpus)


def _regret(group: Sequence[Prediction]) -> float:
    chosen = min(group, key=lambda it: it.step_time)
    best = max(_speed(it, it.run.step_time or np.inf) for it in group)
    return 1.0 - _speed(chosen, chosen.run.step_time or np.inf) / best


def _tau(group: Sequence[Prediction]) -> float:
    """Kendall's tau-a: concordant less discordant pairs over all pairs."""
    signs = [
        np.sign((a.step_time - b.step_time) * ((a.run.step_time or 0.0) - (b.run.step_time or 0.0)))
        for a, b in combinations(group, 2)
    ]
    return float(np.mean(signs))
