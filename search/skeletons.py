"""Skeletons: every (tp, pp, cp, dp, ep, etp) that the skeleton rules allow, enumerated by CP-SAT.

The rules are the same predicates that the NumPy mask calls: one over up to three axes becomes a table of allowed
assignments, the world size a sum of prime exponents, the lower bound on memory a sum of whole megabytes. The mask over
the same grid counts what each rule rejects, and both must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from ortools.sat.python import cp_model_helper as cp_sat  # cp_model is a wrapper of it that imports pandas
from ortools.util.python.sorted_interval_list import Domain

from costmodel.layouts import Column
from costmodel.problem import Problem
from hardware.errors import InputError
from search.rule import Rule
from search.rules_memory import floors, memory_budget
from search.space import SKELETON_AXES, SearchSpace

TABLE_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Skeletons:
    """The enumerated skeletons and the account of those rejected.

    table      int64 columns of SKELETON_AXES, sorted by them
    rejected   tuples of the skeleton axes that each rule rejected, under the first in order: (rule, dp * cp, count)
    status     what CP-SAT ended with: OPTIMAL (all found) or INFEASIBLE (there are none)
    """

    table: Mapping[str, Column]
    status: str
    rejected: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table["tp"])


def enumerate_skeletons(problem: Problem, space: SearchSpace, rules: Sequence[Rule]) -> Skeletons:
    """All skeletons of the space under `rules` (those over skeleton axes), and dp * cp of each tuple rejected.

    Raises InputError with the nearest batches if no DP that the other rules allow divides the global batch.
    """
    grid = space.grid(problem.workload.gpus)
    first = first_rejection(grid, rules)
    check_batch(problem, grid, first, rules)
    status, table = solve(problem, space, rules)
    kept = first == len(rules)
    if any(not np.array_equal(grid[axis][kept], table[axis]) for axis in SKELETON_AXES):
        raise RuntimeError(f"CP-SAT found {len(table['tp'])} skeletons, the mask {np.count_nonzero(kept)}")
    ranks = grid["dp"] * grid["cp"]
    rejected = {rule.name: ranks[first == index] for index, rule in enumerate(rules)}
    return Skeletons(table, status, rejected)


def first_rejection(grid: Mapping[str, Column], rules: Sequence[Rule]) -> Column:
    """Index of the first rule that rejects each row; the number of rules where none does."""
    rows = len(next(iter(grid.values())))
    first = np.full(rows, len(rules), dtype=np.int64)
    for index in range(len(rules) - 1, -1, -1):
        first[~rules[index].mask(grid)] = index
    return first


def solve(problem: Problem, space: SearchSpace, rules: Sequence[Rule]) -> tuple[str, dict[str, Column]]:
    """CP-SAT's status and all its solutions as columns of SKELETON_AXES, sorted."""
    model = SkeletonModel(problem, space)
    for rule in rules:
        model.require(rule)
    status, found = model.solutions(SKELETON_AXES)
    rows = np.array(sorted(found), dtype=np.int64).reshape(-1, len(SKELETON_AXES))
    return status, {axis: np.ascontiguousarray(rows[:, i]) for i, axis in enumerate(SKELETON_AXES)}


class SkeletonModel:
    """A CP-SAT model whose variables are the skeleton axes, their product the number of GPUs."""

    def __init__(self, problem: Problem, space: SearchSpace) -> None:
        self.problem = problem
        self.domains = {axis: space.axes[axis] for axis in SKELETON_AXES}
        self.model = cp_sat.CpModelProto()
        self.variables = {axis: self._variable(values) for axis, values in self.domains.items()}
        self._multiply_to(problem.workload.gpus)

    def require(self, rule: Rule) -> None:
        """Add a rule over skeleton axes."""
        if rule.name == "memory_floor":
            self._memory_floor()
            return
        if len(rule.columns) > TABLE_COLUMNS:
            raise ValueError(f"rule {rule.name} has {len(rule.columns)} columns; a table takes {TABLE_COLUMNS}")
        grid = self._domain_grid(rule.columns)
        allowed = np.broadcast_to(rule.mask(grid), grid[rule.columns[0]].shape)
        self._table(rule.columns, np.stack([grid[axis][allowed] for axis in rule.columns], axis=1))

    def solutions(self, axes: Sequence[str]) -> tuple[str, list[tuple[int, ...]]]:
        """The solver's final status, and the values of some axes in every solution, in no order."""
        variables = [self.variables[axis] for axis in axes]
        model, order = cp_sat.CpModelProto(), cp_sat.DecisionStrategyProto
        model.copy_from(self.model)
        strategy = model.search_strategy.add()
        strategy.variables.extend(variables)
        strategy.variable_selection_strategy, strategy.domain_reduction_strategy = (
            order.CHOOSE_FIRST,
            order.SELECT_MIN_VALUE,
        )
        found, solver = _Collector(variables), cp_sat.SolveWrapper()
        solver.set_parameters(_parameters())
        solver.add_solution_callback(found)
        status = solver.solve(model).status  # type: ignore[no-untyped-call]
        if status not in (cp_sat.OPTIMAL, cp_sat.INFEASIBLE):
            raise RuntimeError(f"CP-SAT ended with {status.name}")
        return status.name, found.rows

    def _multiply_to(self, gpus: int) -> None:
        """tp * pp * cp * dp = gpus, as one sum of exponents for each prime."""
        for prime, total in _factors(gpus).items():
            exponents = []
            for axis in ("tp", "pp", "cp", "dp"):
                variable = self._variable(range(total + 1))
                rows = np.array([(value, _exponent(value, prime)) for value in self.domains[axis]])
                self._table((axis,), rows, variable)
                exponents.append(variable)
            self._sum(exponents, total, total)

    def _memory_floor(self) -> None:
        parts, least = [], 0
        for part in floors(self.problem):
            grid = self._domain_grid(part.columns)
            amounts = np.atleast_1d(part.megabytes(*grid.values()))
            if not part.columns:
                least += int(amounts[0])
                continue
            parts.append(self._variable(np.unique(amounts).tolist()))
            self._table(part.columns, np.stack([*grid.values(), amounts], axis=1), parts[-1])
        self._sum(parts, 0, memory_budget(self.problem) - least)

    def _domain_grid(self, columns: Sequence[str]) -> dict[str, Column]:
        """The product of the domains of some axes, one column an axis."""
        rows = np.array(list(product(*(self.domains[axis] for axis in columns))), dtype=np.int64)
        return {axis: rows[:, i] for i, axis in enumerate(columns)}

    def _variable(self, values: Sequence[int]) -> int:
        """A new variable that takes these values."""
        self.model.variables.add().domain.extend(Domain.from_values(list(values)).flattened_intervals())
        return len(self.model.variables) - 1

    def _table(self, axes: Sequence[str], rows: Column, *more: int) -> None:
        """The axes, and `more` variables, take together the values of one of the rows."""
        table = self.model.constraints.add().table
        table.vars.extend([*(self.variables[axis] for axis in axes), *more])
        table.values.extend(rows.ravel().tolist())

    def _sum(self, variables: Sequence[int], low: int, high: int) -> None:
        linear = self.model.constraints.add().linear
        linear.vars.extend(variables)
        linear.coeffs.extend([1] * len(variables))
        linear.domain.extend([min(low, high), high])


def _parameters() -> cp_sat.SatParameters:
    chosen = cp_sat.SatParameters()
    chosen.num_workers = 1  # two return some solutions twice
    chosen.enumerate_all_solutions = True
    chosen.search_branching = cp_sat.SatParameters.FIXED_SEARCH  # with the next two, half of the time
    chosen.cp_model_presolve = False
    chosen.linearization_level = 0
    chosen.catch_sigint_signal = False  # else Ctrl-C would end the process, here and later
    return chosen


class _Collector(cp_sat.SolutionCallback):
    """Keeps the values of some variables in every solution."""

    def __init__(self, variables: Sequence[int]) -> None:
        super().__init__()
        self._variables = variables
        self.rows: list[tuple[int, ...]] = []

    def OnSolutionCallback(self) -> None:  # noqa: N802, the solver's name
        self.rows.append(tuple(self.SolutionIntegerValue(variable) for variable in self._variables))


def check_batch(problem: Problem, grid: Mapping[str, Column], first: Column, rules: Sequence[Rule]) -> None:
    """Raises InputError with the nearest batches if no dp that the rules before it allow divides the global batch.

    `first` is the first rejection of each row of `grid` under `rules`.
    """
    names = [rule.name for rule in rules]
    if "global_batch" not in names:
        return
    index, batch = names.index("global_batch"), problem.workload.global_batch
    degrees = np.unique(grid["dp"][first >= index])
    if not len(degrees) or np.any(batch % degrees == 0):
        return
    below, above = int((batch // degrees * degrees).max()), int(((batch // degrees + 1) * degrees).min())
    near = f"nearest are {below} and {above}" if below else f"nearest is {above}"
    shown = ", ".join(map(str, degrees[:6])) + (" ..." if len(degrees) > 6 else "")
    raise InputError(f"global_batch {batch} does not divide by any possible dp ({shown}); {near}")


def _factors(number: int) -> dict[int, int]:
    """Prime -> exponent."""
    found: dict[int, int] = {}
    prime = 2
    while number > 1:
        if prime * prime > number:
            prime = number
        while number % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            number //= prime
        prime += 1
    return found


def _exponent(value: int, prime: int) -> int:
    count = 0
    while value % prime == 0:
        value, count = value // prime, count + 1
    return count
