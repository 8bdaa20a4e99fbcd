"""What a model reduces in several threads at once, where sums are lost, done in one thread."""

from __future__ import annotations

import onnx

from onnxremat.grad.lowering.one_by_one import single_reductions
from onnxremat.graph.ir import Graph, all_nodes
from onnxremat.graph.traits import is_racing, reduces_in_threads


def without_lost_sums(graph: Graph) -> tuple[Graph, list[str]]:
    """The graph with such ops replaced where their sizes are known, and a note if there are any."""
    made = single_reductions(graph)
    if made is graph:
        return graph, []
    left = {op.name for op in made.ops}
    names = [op.name or op.outputs[0] for op in graph.ops if is_racing(op) and op.name not in left]
    if not names:
        return graph, []
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return made, [
        f"ScatterND '{names[0]}'{more} of the original adds to one place from several threads at "
        "once where indices repeat, and loses sums, others in each run: ScatterElements does it "
        "here, in one thread; shares of the original's memory are of the file as it came"
    ]


def may_lose_sums(model: onnx.ModelProto) -> bool:
    """Such an op is anywhere in a model: what it returns is right with one thread alone."""
    return any(reduces_in_threads(node) for node in all_nodes(model.graph))
