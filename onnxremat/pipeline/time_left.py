"""What a time limit leaves, and what there is no time for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxremat.pipeline.phases import COSTS, Phases
from onnxremat.planner.options import PlanOptions

if TYPE_CHECKING:
    from onnxremat.pipeline.prepare import Prepared

MEASURING, QUICK = 0.2, 2.0  # of the time limit, and seconds, on top of it: costs of the whole
OFF_PLANNING = 0.3  # of the time limit, taken off it, where these are not enough to measure
LONG_RUN = 3.0  # seconds from which it is said that runs of the model take their time
PARTS = 2  # times as long as the whole a graph in parts takes to be optimised, at least


def left_of(options: PlanOptions, log: Phases) -> PlanOptions:
    """The options of planning, less the time that measuring took beyond its own."""
    limit = options.time_limit
    over = log.seconds.get(COSTS, 0.0) - MEASURING * limit - QUICK
    if over <= 0 or options.work is not None:
        return options
    return options.lasting(max(limit - over, (1 - OFF_PLANNING) * limit))


def out_of_time(prepared: Prepared, options: PlanOptions, parts: int = PARTS) -> str:
    """Why a graph in so many parts is not tried, "" where there is time for it."""
    needs = parts * prepared.optimising
    if options.affords(needs):
        return ""
    return (
        f"optimising it in parts would take {needs:.0f} s more, which the time limit leaves no "
        "room for (a longer --time-limit does)"
    )


def say_of_runs(seconds: float, log: Phases) -> None:
    """That runs take their time, where one took so long, loading the model included."""
    if seconds > LONG_RUN:
        log(
            f"onnxruntime takes {seconds:.0f} s to load and run this model, which is done up to "
            "ten times; the time limit is for planning"
        )
