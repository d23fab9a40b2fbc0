"""A field that says its unit and meaning; schemas, tables and explanations are read from there."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def quantity(meaning: str, unit: str = "1", within: tuple[float, float] | None = None) -> Any:
    """A dataclass field without a default; its metadata hold `meaning`, SI `unit`, and the least and most it can be."""
    return field(metadata={"meaning": meaning, "unit": unit, "within": within})
