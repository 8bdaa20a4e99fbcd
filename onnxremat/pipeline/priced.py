"""What every op of a model costs: as asked, measured, or estimated."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from onnxremat.cost.analytic import analytic_costs, estimated_by
from onnxremat.cost.measure import measure_costs
from onnxremat.cost.table import CostTable
from onnxremat.errors import EndedError, InfeasibleError
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Feeds, Profile
from onnxremat.pipeline.phases import COSTS, Phases
from onnxremat.session.measure import weight_bytes
from onnxremat.units import format_bytes

if TYPE_CHECKING:
    from onnxremat.pipeline.prepare import Prepared, Settings


def priced(
    graph: Graph,
    feeds: Feeds | None,
    settings: Settings,
    folder: Path | None,
    log: Phases,
    whole: Prepared | None = None,
) -> tuple[CostTable, Profile | None]:
    """The costs, and the run in which they were measured, None where there was none.

    Args:
        feeds: to measure on, None where nothing is run.
        whole: the same model whole, priced already: an interrupt ends measuring, and costs are
            estimated by it.

    Raises:
        InfeasibleError: weights and results alone take more than ``settings.room``.
        ModelError: onnxruntime refuses the model or a run fails.
    """
    _refuse_at_once(graph, settings.room)
    if settings.costs is not None:
        return settings.costs(graph), None
    if feeds is None:
        return analytic_costs(graph), None
    try:
        with (
            log.ending(True) if whole else nullcontext(),
            log.phase(COSTS, "measuring the cost of every op"),
        ):
            return measure_costs(
                graph, feeds, threads=settings.threads, folder=folder, fresh=settings.fresh
            )
    except EndedError:
        if whole is None:
            raise
        return estimated_by(whole.graph, whole.costs, graph), None


def _refuse_at_once(graph: Graph, room: int) -> None:
    least = weight_bytes(graph) + sum(graph.tensors[name].bytes for name in graph.outputs)
    if 0 < room < least:
        raise InfeasibleError(
            f"no plan fits {format_bytes(room)} ({room} B)",
            why=f"at least {format_bytes(least)} ({least} B) are needed: weights and results, "
            "which are there in any order and in any parts",
            hint="--budget min finds the smallest budget, onnxremat explain what takes how much",
            lower_bound=least,
        )
