"""Rule: one condition that a layout must meet, as one vectorised predicate with its reason in numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.layouts import Column


@dataclass(frozen=True, slots=True)
class Rule:
    """A named condition. `ok` takes the columns in order (int64, broadcastable) and returns booleans, `because` takes
    one row's numbers and says in one line why the row is rejected."""

    name: str
    columns: tuple[str, ...]
    ok: Callable[..., Any]
    because: Callable[..., str]

    def mask(self, table: Mapping[str, Column]) -> Column:
        """Whether each row of a table meets the rule."""
        return np.asarray(self.ok(*(table[name] for name in self.columns)))

    def explain(self, row: Mapping[str, int]) -> str:
        """Why the rule rejects a row, with the numbers."""
        return self.because(*(row[name] for name in self.columns))


def violations(rules: Sequence[Rule], row: Mapping[str, int]) -> list[tuple[str, str]]:
    """(rule, because) for every rule that one row breaks; rules over columns that the row lacks are passed over."""
    found = []
    for rule in rules:
        if all(name in row for name in rule.columns) and not bool(np.all(rule.ok(*_arrays(rule, row)))):
            found.append((rule.name, rule.explain(row)))
    return found


def _arrays(rule: Rule, row: Mapping[str, int]) -> list[Column]:
    return [np.asarray([row[name]]) for name in rule.columns]
