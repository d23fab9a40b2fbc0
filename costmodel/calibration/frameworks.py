"""The framework that a run states -> the profile that it is predicted with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from costmodel.calibration.cells import number
from costmodel.profile import Profile, load_profile
from hardware.errors import InputError

FRAMEWORKS: tuple[tuple[str, str], ...] = (
    ("megatron-deepspeed", "megatron-2021"),
    ("vtrain", "megatron-2021"),
    ("megatron", "megatron"),
    ("nemo-automodel", "torchtitan"),
    ("nemo", "megatron"),
    ("nanotron", "nanotron"),
    ("torchtitan", "torchtitan"),
    ("llm-foundry", "llm-foundry"),
    ("internevo", "internevo"),
    ("hai-llm", "deepseek"),
    ("meta internal", "llama3-meta"),
    ("deepspeed", "deepspeed"),
)
"""Names of frameworks as runs state them (how they begin, lower case) -> the profile that stands for them."""
FALLBACK = "torchtitan"
"""Profile of a framework that is not listed: PyTorch FSDP is what most of them build on."""

SLOW_BUSBW = 432.0
"""GB/s inside a node below which nanotron's machines were in their slow state."""

_profile = lru_cache(load_profile)


def profile_name(framework: str) -> str:
    """The profile that stands for a framework's name."""
    return listed(framework) or FALLBACK


def listed(framework: str) -> str:
    """The profile that stands for a framework; empty for one that is not listed."""
    known = framework.lower()
    return next((profile for begins, profile in FRAMEWORKS if known.startswith(begins)), "")


def profile_of(row: Mapping[str, str], given: Profile | None) -> Profile:
    """The profile that stands for the row's framework; or the given one, where it is the row's or builds on it."""
    own = _state(row)
    if given is None:
        return _profile(own)
    if listed(row["framework"]) == given.shipped != own:
        raise InputError(f"busbw_intra_gbs below {SLOW_BUSBW:g} makes it a row of profile {own}, not of {given.name}")
    if listed(row["framework"]) and own != given.shipped:
        raise InputError(f"framework {row['framework']!r} is not that of profile {given.name}")
    return given


def _state(row: Mapping[str, str]) -> str:
    """The profile of a row: nanotron's sweep logged on some machines a slow state, NVLink near 425 instead of 458 GB/s,
    in which each layer waits for the host in proportion to TP."""
    name = profile_name(row["framework"])
    logged = number(row, "busbw_intra_gbs")
    return "nanotron-slow" if name == "nanotron" and logged is not None and logged < SLOW_BUSBW else name
