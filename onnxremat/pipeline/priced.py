"""What every op of a model costs: as asked, measured, or estimated."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from onnxremat.cost.analytic import analytic_costs, estimated_by
from onnxremat.cost.measure import measure_costs
from onnxremat.cost.table import CostTable
from onnxremat.errors import EndedError
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Feeds, Profile
from onnxremat.pipeline.phases import COSTS, Phases

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
        ModelError: onnxruntime refuses the model or a run fails.
    """
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
