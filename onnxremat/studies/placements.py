"""Placement methods side by side on one graph, with proofs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from onnxremat.errors import InfeasibleError, UnsupportedError
from onnxremat.placement import anywhere, baselines, contiguous, latency, released, two_maxima
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.calls import Timing, compute_latency, time_calls
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.judge import judge


@dataclass(frozen=True)
class Placed:
    """One method's answer to one question.

    Attributes:
        objective: ``throughput``, ``two-maxima`` or ``latency``.
        asks: which placements are asked for: ``chain``, ``convex`` (what the released program calls
            contiguous), ``any``, ``q = 1``.
        value: judged, ``inf`` without a placement.
        bound: proven for all placements that are asked for; 0 without.
        breaks: rules that the split breaks, which its program lets pass.
        why: there is no answer.
    """

    objective: str
    asks: str
    method: str
    value: float
    bound: float
    status: str
    seconds: float
    breaks: tuple[str, ...] = ()
    why: str = ""


Say = Callable[[str], None]


def compare_placements(graph: PlacementGraph, work: Work, say: Say) -> list[Placed]:
    """All methods; ours first for each question. The time limit holds for each.

    Raises:
        InfeasibleError: proven that nothing keeps the limits.
    """
    found: list[Placed] = []

    def ask(
        objective: str, asks: str, name: str, method: Callable[[PlacementGraph, Work], Answer]
    ) -> None:
        if not work.stop():
            say(f"{objective}, {asks}: {name}")
            found.append(_placed(graph, objective, asks, name, method, work))

    ask("throughput", "chain", "dp", contiguous.solve)
    for name, method in baselines.CHAINS.items():
        ask("throughput", "chain", name, method)
    ask("throughput", "convex", "ip", lambda g, w: released.solve(g, w, contiguous=True))
    ask("throughput", "any", "annealing", anywhere.solve)
    ask("throughput", "any", "ip", lambda g, w: released.solve(g, w, contiguous=False))
    for name, method in baselines.ANY.items():
        ask("throughput", "any", name, method)
    if graph.training:
        ask("two-maxima", "chain", "dp", two_maxima.chain)
        ask("two-maxima", "any", "annealing", two_maxima.anywhere)
        return found
    ask("latency", "q = 1", "annealing", lambda g, w: latency.solve(g, 1, w))
    for name, method in {"greedy": baselines.greedy, "dp": contiguous.solve}.items():
        ask("latency", "released", name, method)
    return found


def _placed(
    graph: PlacementGraph,
    objective: str,
    asks: str,
    name: str,
    method: Callable[[PlacementGraph, Work], Answer],
    work: Work,
) -> Placed:
    begin = replace(work)  # its clock begins anew
    try:
        answer = method(graph, begin)
    except (InfeasibleError, UnsupportedError) as error:
        status = "infeasible" if isinstance(error, InfeasibleError) else "not supported"
        return Placed(objective, asks, name, inf, 0.0, status, begin.taken, (), error.why)
    if answer.where is None:
        why = "; ".join(answer.notes) or "nothing found in time"
        return Placed(objective, asks, name, inf, 0.0, answer.status, answer.seconds, (), why)
    split = answer.split(graph)
    verdict = judge(graph, split.by_accelerator(answer.calls))
    value = verdict.two_maxima if objective == "two-maxima" else verdict.max_load
    if objective == "latency":
        value = _timing(graph, answer).latency
    rules = tuple(dict.fromkeys(f.rule for f in verdict.broken(contiguous=asks == "chain")))
    bounded = answer.bound > 0 and asks != "released"
    return Placed(
        objective, asks, name, value, answer.bound if bounded else 0.0,
        answer.status if bounded else "heuristic", begin.taken,
        tuple(rule for rule in rules if not (objective == "latency" and rule.endswith("cpus"))),
    )  # fmt: skip


def _timing(graph: PlacementGraph, answer: Answer) -> Timing:
    split = answer.split(graph)
    if answer.slots is None:
        return compute_latency(graph, split)
    pieces = [(i // answer.calls, nodes) for i, nodes in enumerate(split.accelerators)]
    return time_calls(graph, pieces, in_order=True)
