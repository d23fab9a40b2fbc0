"""A field that says its unit and meaning; schemas, tables and explanations are read from there."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def quantity(
    meaning: str, unit: str = "1", within: tuple[float, float] | None = None, light: float | str | None = None
) -> Any:
    """A dataclass field without a default; its metadata hold `meaning`, SI `unit`, and the least and most it can be.

    `light` is, for a rate, its value where nothing is lost; for a term of time, what bounds it at the speed of light:
    "gpu" (peak FLOP/s and HBM bandwidth) or "links", None where nothing but loss is in it.
    """
    return field(metadata={"meaning": meaning, "unit": unit, "within": within, "light": light})
