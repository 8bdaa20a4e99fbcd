"""The order that planning begins with, and what the original takes in its own, on paper."""

from __future__ import annotations

from collections.abc import Mapping

from onnxremat.cost.table import CostTable
from onnxremat.graph.ir import Graph
from onnxremat.graph.order import default_order, file_order, priority_order, reordered
from onnxremat.ort.offline import Optimised
from onnxremat.pipeline.weight_order import ASAP, LATE, DwPolicy, ordered
from onnxremat.schedule.simulate import simulate
from onnxremat.units import format_bytes


def base_order(
    graph: Graph,
    original: Graph,
    fixed: bool,
    policy: DwPolicy | None = None,
    scratch: Mapping[str, int] | None = None,
) -> Graph:
    """The better of the file's order and onnxruntime's own, by predicted peak.

    Args:
        policy: where gradients of weights are in the file's order; with ``auto`` the two ends of
            what they can be are tried as well.
        scratch: bytes of each op's workspace, where they are known; else none is counted.

    Raises:
        UnsupportedError: a policy for what is no training step.
        UsageError: one for more layers than there are.
    """
    given = as_listed(graph, original)
    if policy is not None and policy.fixed:
        return as_run(ordered(given, policy))
    choices = [given]
    if policy is not None:
        choices += two_ends(given)
    if not fixed:
        choices += [reordered(graph, default_order(graph)), graph]
    settled = [as_run(choice) for choice in choices]
    apart: dict[tuple[str, ...], Graph] = {}
    for choice in settled:
        apart.setdefault(tuple(op.name for op in choice.ops), choice)
    return min(apart.values(), key=lambda g: simulate(g, scratch=scratch).peak)


def as_listed(graph: Graph, original: Graph) -> Graph:
    """In the order of the file."""
    return file_order(graph, [name for op in original.ops for name in op.writes])


def weights_notes(
    policy: DwPolicy | None, graph: Graph, original: Graph, costs: CostTable, weights: int
) -> tuple[str, ...]:
    """What both ends of a training step's orders take without recomputation, and the base order.

    Args:
        policy: None for nothing to say.
        graph: in the base order.
        weights: bytes of weights.
    """
    if policy is None:
        return ()
    soon, late, here = (
        format_bytes(simulate(each, scratch=costs.scratch, weight_bytes=weights).peak)
        for each in (*map(as_run, two_ends(as_listed(graph, original))), graph)
    )
    return (
        f"gradients of weights, nothing recomputed: asap {soon}, late {late}; --dw-policy {policy} "
        f"{'is' if policy.fixed else 'begins with'} an order of {here}",
    )


def as_run(graph: Graph) -> Graph:
    """In the order in which a session runs this listing."""
    return reordered(graph, priority_order(graph))


def two_ends(graph: Graph) -> list[Graph]:
    """A training step with its gradients of weights as soon as they can be made, and at the end.

    Raises:
        UnsupportedError: it has none.
    """
    return [ordered(graph, DwPolicy(kind)) for kind in (ASAP, LATE)]


def target_notes(asked: str, made: Optimised, store_all: int, peak: int) -> tuple[str, ...]:
    """What there is to say of the target.

    Args:
        asked: for.
        store_all, peak: bytes of the graph that is planned, and of the original.
    """
    notes = []
    if made.target != asked:
        notes.append(
            f"optimised for --target {made.target}, not {asked}: onnxruntime does not open what it "
            f"makes of this model for {asked} ({made.why})"
        )
    elif asked != "host" and store_all > peak:
        notes.append(
            f"onnxruntime runs the original in {format_bytes(peak)} because it fuses more "
            "at load; --target host plans that graph (a file for this kind of processor)"
        )
    return tuple(notes)
