"""What a search took, and which of it nobody typed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from textwrap import wrap

from costmodel.problem import Problem
from search.inputs import EXPERTS

WORKLOAD = ("seq_len", "global_batch", "precision", "grad_dtype", "moments_dtype", "flops_convention", "memory_margin")
SHORT = {"rates_of": "rates of", "zero_stages": "zero", "zero_stages_with_pp": "with pp"}
"""Names that are no option, in the text."""
WIDTH = 120

Settings = Mapping[str, Mapping[str, object]]
"""By the name of an option, with underscores: `value`, and whether it is the `default`."""


def settings(arguments: Namespace, problem: Problem) -> Settings:
    """What was searched with, typed or not; `rates_of` and the ZeRO stages with a pipeline follow from the profile."""
    profile, names = problem.profile, (*WORKLOAD, *(EXPERTS if problem.model.is_moe else ()))
    values: dict[str, object] = {name: getattr(problem.workload, name) for name in names}
    values |= {"profile": profile.name, "rates_of": profile.rates_of or None, "space": arguments.space}
    found = {name: {"value": value, "default": name not in arguments.given} for name, value in values.items()}
    for name, stages in (("zero_stages", profile.zero_stages), ("zero_stages_with_pp", profile.zero_stages_with_pp)):
        taken = [stage for stage in stages if not arguments.zero or stage in arguments.zero]
        found[name] = {"value": taken, "default": "zero" not in arguments.given}
    return found


def said(found: Settings) -> Iterator[str]:
    """The defaults, as options without their dashes; nothing where all was typed."""
    parts = [
        f"{SHORT.get(name, name.replace('_', '-'))} {_text(it['value'])}" for name, it in found.items() if it["default"]
    ]
    told = ", ".join(parts).replace(", rates of", " on") if found["profile"]["default"] else ", ".join(parts)
    if told:
        yield from wrap(f"defaults: {told}", WIDTH, subsequent_indent="   ", break_on_hyphens=False)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        run = len(value) > 1 and value == list(range(value[0], value[-1] + 1))
        return f"{value[0]}-{value[-1]}" if run else " ".join(map(str, value))
    return "no GPU" if value is None else f"{value}"
