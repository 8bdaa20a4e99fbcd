"""Published rules as planners of their own, to compare with.

Each takes (problem, budget in bytes) and returns a :class:`Solution` whose sequence, when there is
one, was replayed against the budget. Their certificates hold only the trivial bound.
"""

from __future__ import annotations

from onnxremat.planner.baselines.checkpoints import (
    articulation,
    chen_greedy,
    chen_sqrt,
    every_block,
    recompute_all,
    store_all,
)
from onnxremat.planner.baselines.eviction import dtr, farthest
from onnxremat.planner.baselines.knapsack import knapsack, lp_rounding
from onnxremat.planner.baselines.revolve import revolve
from onnxremat.planner.baselines.verdict import Baseline

BASELINES: dict[str, Baseline] = {  # named as ``options.PUBLISHED`` has them
    "store-all": store_all,
    "recompute-all": recompute_all,
    "chen-sqrt": chen_sqrt,
    "chen-greedy": chen_greedy,
    "articulation": articulation,
    "every-block": every_block,
    "revolve": revolve,
    "dtr": dtr,
    "farthest": farthest,
    "lp-rounding": lp_rounding,
    "knapsack": knapsack,
}

__all__ = ["BASELINES", "Baseline"]
