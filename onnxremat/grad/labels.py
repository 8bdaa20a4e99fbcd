"""Results that are no floating-point numbers: labels, maps of probabilities by label.

Classifiers of scikit-learn and of Core ML return them beside the probabilities. How large they are
is often known to a run only (``ArrayFeatureExtractor``), and no loss is made of them.
"""

from __future__ import annotations

import onnx

from onnxremat.grad.tape import FLOATS
from onnxremat.graph.ir import captures


def without_labels(model: onnx.ModelProto, wanted: set[str]) -> onnx.ModelProto:
    """The model without results that are no floating-point numbers, and without the nodes that
    nothing else needs; itself where it has none such.

    Args:
        wanted: outputs that stay, whatever they are. Where one is not there, nothing is left out.
    """
    names = {value.name for value in model.graph.output}
    kept = [
        value
        for value in model.graph.output
        if value.name in wanted or value.type.tensor_type.elem_type in FLOATS
    ]
    if not 0 < len(kept) < len(names) or not wanted <= names:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.output[:], made.graph.node[:]
    made.graph.output.extend(kept)
    needed = {value.name for value in kept}
    left: list[onnx.NodeProto] = []
    for node in reversed(model.graph.node):
        if not needed.isdisjoint(node.output):
            left.append(node)
            needed.update(node.input, captures(node))
    made.graph.node.extend(reversed(left))
    return made
