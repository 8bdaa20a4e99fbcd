"""An If whose condition is known before the run, replaced by the branch it takes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnxremat.grad.lowering.writer import Writer


def taken_branch(w: Writer) -> None:
    """The nodes of the branch, its values named after the If."""
    kind = "then_branch" if bool(w.known[w.input(0)].reshape(())) else "else_branch"
    body: onnx.GraphProto = w.attributes[kind]
    made = [name for node in body.node for name in node.output if name]
    made += [tensor.name for tensor in body.initializer]
    names = {name: f"{w.op.name}/{name}" for name in made}
    for tensor in body.initializer:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = names[tensor.name]
        w.initializers.append(copy)
    w.nodes.extend(renamed_node(node, names, f"{w.op.name}/") for node in body.node)
    for value, output in zip(body.output, w.op.outputs, strict=True):
        if output:
            w("Identity", names.get(value.name, value.name), to=output)


def renamed_node(node: onnx.NodeProto, names: Mapping[str, str], prefix: str) -> onnx.NodeProto:
    """A node with its values renamed, those that bodies inside it read as well."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = f"{prefix}{node.name}" if node.name else ""
    for field in (copy.input, copy.output):
        field[:] = [names.get(name, name) for name in field]
    for attribute in copy.attribute:
        # To change a graph that is not there, if only to leave it empty, would make one.
        single = [attribute.g] if attribute.HasField("g") else []
        for body in (*single, *attribute.graphs):
            inner = [renamed_node(each, names, "") for each in body.node]
            del body.node[:]
            body.node.extend(inner)
            for value in body.output:
                value.name = names.get(value.name, value.name)
    return copy
