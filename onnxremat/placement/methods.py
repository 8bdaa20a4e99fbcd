"""What can be asked for, and who answers it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxremat.errors import InfeasibleError, UsageError
from onnxremat.placement import anywhere, contiguous, latency, two_maxima
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.classes import turned_round
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.judge import Verdict

THROUGHPUT, TWO_MAXIMA, LATENCY = "throughput", "two-maxima", "latency"
OBJECTIVES = (THROUGHPUT, TWO_MAXIMA, LATENCY)
TURNED = (
    "of chains in which backward nodes that share no device with forward ones stand as their edges "
    "say, turned round: others, which --check takes, may be better"
)


@dataclass(frozen=True)
class Ask:
    """What a placement is to be best at.

    Attributes:
        objective: ``throughput``, the largest load; ``two-maxima``, the largest forward plus the
            largest backward time; ``latency``, of one sample.
        contiguous: devices form a chain of ideals; not of latency, where each piece is convex.
        calls: of latency, pieces per accelerator.

    Raises:
        UsageError: an unknown objective.
    """

    objective: str = THROUGHPUT
    contiguous: bool = True
    calls: int = 1

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(
                f"--objective '{self.objective}' is not known",
                hint="choose from " + ", ".join(OBJECTIVES),
            )

    def value(self, verdict: Verdict) -> float:
        """Of a judged split, where it is a matter of loads."""
        return verdict.two_maxima if self.objective == TWO_MAXIMA else verdict.max_load


def solve(graph: PlacementGraph, ask: Ask, work: Work) -> Answer:
    """The best placement that is found, with what is proven. Devices beyond one for every node stay
    idle, and cost no time.

    Raises:
        InfeasibleError: proven that nothing keeps the limits.
    """
    most = min(graph.accelerators, graph.count)
    idle = graph.accelerators - most
    found = _solve(graph.with_limits(most, min(graph.cpus, graph.count)), ask, work)
    if not idle or found.where is None:
        return found
    order = tuple(device + idle * (device >= most) for device in found.order)
    return replace(found, where=found.where + idle * (found.where >= most), order=order)


def _solve(graph: PlacementGraph, ask: Ask, work: Work) -> Answer:
    if ask.objective == LATENCY:
        return latency.solve(graph, ask.calls, work)
    two = ask.objective == TWO_MAXIMA
    if not ask.contiguous:
        return two_maxima.anywhere(graph, work) if two else anywhere.solve(graph, work)
    said = (TURNED,) if turned_round(graph) else ()
    try:
        found = two_maxima.chain(graph, work) if two else contiguous.solve(graph, work)
    except InfeasibleError as error:
        error.why = "; ".join((error.why, *said))
        raise
    return replace(found, notes=(*found.notes, *said))
