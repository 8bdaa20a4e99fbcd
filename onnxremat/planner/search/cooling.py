"""What both walks share: temperatures, and the price of a byte over budget for one step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from onnxremat.planner.search.arrays import Arrays


class Tuning(NamedTuple):
    """Temperatures and prices, relative to the problem; docs/search.md has what was measured."""

    first: float = 4.0  # mean ops that one mean value over budget for one step costs at first
    cold: float = 0.004  # last temperature in mean op costs: below it nothing worse is taken
    every: int = 50  # moves between changes of the price
    rise: float = 1.02  # of the price while over budget: doubles in 1750 moves
    fall: float = 0.985  # and while within: faster, as most of a walk ought to be at the border


TUNING = Tuning()


def temperatures(arrays: Arrays, heat: float) -> tuple[float, float]:
    """Seconds at the start, at so many mean op costs, and at the end."""
    mean = _mean_cost(arrays)
    return heat * mean, TUNING.cold * mean


def first_price(arrays: Arrays) -> float:
    """Seconds that a byte over budget for one step costs at first."""
    mean_size = max(1.0, float(arrays.size.mean()) if arrays.size.size else 1.0)
    return TUNING.first * _mean_cost(arrays) / mean_size


def _mean_cost(arrays: Arrays) -> float:
    finite = arrays.cost[np.isfinite(arrays.cost)]
    return max(1e-300, float(finite.mean()))
