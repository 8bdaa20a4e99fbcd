"""What every op of a model costs: as asked, measured, or estimated."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxremat.cost.analytic import analytic_costs, estimated_at, estimated_by
from onnxremat.cost.in_step import in_step
from onnxremat.cost.kernels import kernel_costs
from onnxremat.cost.measure import CACHED, measure_costs
from onnxremat.cost.table import CostTable
from onnxremat.device.host import memory_bytes
from onnxremat.errors import EndedError
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.profile import Feeds, Profile
from onnxremat.ort.session import TUNED
from onnxremat.pipeline.floor import Floor
from onnxremat.pipeline.phases import COSTS, Phases
from onnxremat.pipeline.time_left import for_costs, for_parts
from onnxremat.planner.bounds import largest_need
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.reduce import reduce
from onnxremat.session.gathered import beside_step
from onnxremat.session.measure import profiled, weight_bytes

if TYPE_CHECKING:
    from onnxremat.pipeline.prepared import Prepared
    from onnxremat.pipeline.settings import Settings
    from onnxremat.pipeline.unsplit import Unsplit

MATTER = 1 << 10  # bytes of weights from which a run is made for them alone
INTERRUPTED = "interrupted while costs were measured: they are estimated from those of the whole"


def priced(
    graph: Graph,
    feeds: Feeds | None,
    settings: Settings,
    unsplit: Unsplit,
    log: Phases,
    whole: Prepared | None = None,
) -> tuple[CostTable, Profile | None]:
    """The costs, and the run in which they were measured, None where there was none. Where they are
    known, and kernels hold weights in a form that only a run tells, there is one.

    Args:
        feeds: to measure on, None where nothing is run.
        unsplit: what the graph was made of.
        whole: the same model whole, priced already: both are compared by one set of costs. An
            interrupt ends measuring, and costs are estimated by it.

    Raises:
        ModelError: onnxruntime refuses the model or a run fails.
    """
    if settings.costs is not None:
        return settings.costs(graph), None
    if feeds is None:
        return analytic_costs(graph), None
    estimate = estimated_by(whole.graph, whole.costs, graph) if whole else _seen(graph, unsplit)
    if _hopeless(graph, settings, unsplit):
        return estimate, None
    try:
        with (
            log.ending(True) if whole else nullcontext(),
            log.phase(COSTS, "measuring the cost of every op"),
        ):
            how = settings.measuring(unsplit.made.folder)
            if _in_parts_alone(graph, settings, unsplit, estimate):
                how = for_parts(how)
            table, ran = measure_costs(
                graph, feeds, for_costs(how, log), threads=settings.threads, estimate=estimate
            )
            if ran is None and table.source == CACHED and unsplit.unforeseen > MATTER:
                options = replace(TUNED, threads=settings.threads)
                ran = profiled(to_model(graph), feeds, options, unsplit.made.folder)
            if whole:
                table = in_step(table, graph, whole.costs, whole.graph)
            return replace(table, kernels=kernel_costs(settings.threads)), ran
    except EndedError:
        if whole is None:
            raise
        return replace(estimate, notes=(INTERRUPTED,)), None


def _seen(graph: Graph, unsplit: Unsplit) -> CostTable:
    """Estimates by the run of the original: what its kernels took beside their values is known, for
    ops that are its own."""
    run = unsplit.baseline
    if run is None:
        return estimated_at(graph, 0.0)
    took = {(kernel.name, kernel.op_type): kernel.scratch for kernel in run.kernels}
    return estimated_at(graph, run.seconds, took)


def _limit(settings: Settings, unsplit: Unsplit) -> int | None:
    """Bytes of the budget that is planned for, None where there is none."""
    if settings.budget is None:
        return None
    return settings.budget.resolve(device_bytes=memory_bytes(), peak_bytes=unsplit.peak)


def _in_parts_alone(
    graph: Graph, settings: Settings, unsplit: Unsplit, estimate: CostTable
) -> bool:
    """An op of an inference needs more at once than the budget, or the least memory is asked for,
    which parts take and costs do not change; and nobody asked for the whole."""
    size = _limit(settings, unsplit)
    asked = (settings.split_batch, settings.fission, settings.train)
    if settings.budget is None or settings.fixed_order or any(each is not None for each in asked):
        return False
    if size is None:
        return True
    problem = reduce(graph, estimate, weight_bytes(graph)).problem
    return largest_need(ProblemLists(problem)).bytes > size


def _hopeless(graph: Graph, settings: Settings, unsplit: Unsplit) -> bool:
    """Weights and results alone, and what the budget counts beside them, take more than it: what is
    left to say is the smallest budget, and sizes need no costs."""
    budget, size = settings.budget, _limit(settings, unsplit)
    if budget is None or size is None:
        return False
    counted = beside_step(graph, unsplit.original).without(settings.not_counted)
    floor = Floor.of(graph, weight_bytes(graph), counted)
    return size < (floor.fixed if budget.of_peak else floor.total)
