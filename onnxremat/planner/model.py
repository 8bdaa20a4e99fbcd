"""A small sparse mixed-integer model: what formulations write and solver back ends read.

Minimise ``offset + cost.x + sum q x_i x_j`` subject to ``lower <= A x <= upper`` and bounds on
columns. Formulations append columns and rows one by one; back ends take the compressed arrays.
Nothing here knows a solver.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from onnxremat.planner.problem import Floats, Ints


@dataclass
class Model:
    """A mixed-integer program under construction.

    Attributes:
        name: used in exported files.
        offset: constant of the objective.
        cost, lower, upper, integer: one entry per column.
        labels: column names (empty until a formulation asks for them), else ``x0, x1, ...``.
        row_lower, row_upper: one entry per row.
        quadratic_cost: terms ``(i, j, q)`` of the objective.
    """

    name: str = "model"
    offset: float = 0.0
    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    quadratic_cost: list[tuple[int, int, float]] = field(default_factory=list)
    _start: list[int] = field(default_factory=lambda: [0])
    _index: list[int] = field(default_factory=list)
    _value: list[float] = field(default_factory=list)

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self.cost)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_lower)

    @property
    def quadratic(self) -> bool:
        """True when any product of columns appears."""
        return bool(self.quadratic_cost)

    def binary(self, cost: float = 0.0, label: str = "") -> int:
        """Append a 0/1 column and return its index."""
        return self.column(0.0, 1.0, cost, integer=True, label=label)

    def column(
        self,
        lower: float = 0.0,
        upper: float = inf,
        cost: float = 0.0,
        *,
        integer: bool = False,
        label: str = "",
    ) -> int:
        """Append a column and return its index."""
        index = len(self.cost)
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        self.labels.append(label or f"x{index}")
        return index

    def row(
        self,
        terms: Iterable[tuple[int, float]],
        lower: float = -inf,
        upper: float = inf,
    ) -> int:
        """Append ``lower <= sum a x_j <= upper`` and return its index.

        Each column may appear once in ``terms``.
        """
        row, index, values = len(self.row_lower), self._index, self._value
        for column, value in terms:
            index.append(column)
            values.append(value)
        self._start.append(len(index))
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        return row

    def cut_back(self, rows: int) -> None:
        """Drop the rows appended after the first ``rows``."""
        del self._start[rows + 1 :], self.row_lower[rows:], self.row_upper[rows:]
        del self._index[self._start[-1] :], self._value[self._start[-1] :]

    def matrix(self) -> tuple[Ints, Ints, Floats]:
        """Row-wise compressed matrix: (start, column index, value)."""
        return (
            np.asarray(self._start, np.int32),
            np.asarray(self._index, np.int32),
            np.asarray(self._value, np.float64),
        )

    def objective(self, point: NDArray[np.float64]) -> float:
        """Objective at a point, shape (columns,)."""
        value = self.offset + float(np.dot(self.cost, point))
        return value + sum(q * float(point[i] * point[j]) for i, j, q in self.quadratic_cost)

    def bound_at(self, prices: NDArray[np.float64]) -> float:
        """Lower bound of the objective at any prices of the rows (a linear model).

        Weak duality: the prices may be rough, the bound holds all the same.

        Args:
            prices: one per row; positive ones price the lower limit, negative ones the upper.
        """
        lower, upper = np.asarray(self.row_lower), np.asarray(self.row_upper)
        limit = np.where(prices > 0, lower, upper)
        prices = np.where(np.isfinite(limit), prices, 0.0)
        start, index, value = self.matrix()
        pull = np.repeat(prices, np.diff(start)) * value
        left = np.asarray(self.cost) - np.bincount(index, weights=pull, minlength=self.columns)
        end = np.where(left > 0, np.asarray(self.lower), np.asarray(self.upper))
        terms = left[left != 0] * end[left != 0]
        priced = prices != 0
        return self.offset + float(terms.sum() + np.dot(prices[priced], limit[priced]))

    def violation(self, point: NDArray[np.float64]) -> float:
        """Largest violation of any bound or row at a point (0 when feasible)."""
        start, index, value = self.matrix()
        activity = np.zeros(self.rows)
        owner = np.repeat(np.arange(self.rows), np.diff(start))
        np.add.at(activity, owner, value * point[index])
        worst = 0.0
        for bad in (
            np.asarray(self.row_lower) - activity,
            activity - np.asarray(self.row_upper),
            np.asarray(self.lower) - point,
            point - np.asarray(self.upper),
        ):
            worst = max(worst, float(bad.max(initial=0.0)))
        return worst
