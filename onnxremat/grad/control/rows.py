"""Writes a graph again with some lists as tensors, a row for each element."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.graph.ir import Graph, Op, subgraphs

READERS = frozenset({"SequenceAt", "SequenceLength", "ConcatFromSequence"})
END = (1 << 63) - 1


class Rows:
    """The nodes of a graph, one after the other.

    Args:
        graph: what is written again.
        lists: names of the lists that become tensors.

    Attributes:
        rows: the name of the tensor for each list.
    """

    def __init__(self, graph: Graph, lists: Collection[str]) -> None:
        self.graph = graph
        self._taken = {*graph.tensors, *_all_names([op.node for op in graph.ops])}
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[tuple[int, ...], onnx.TensorProto] = {}
        self._changed = False
        self.rows: Mapping[str, str] = {name: self.fresh(name, "rows") for name in sorted(lists)}

    def fresh(self, label: str, stem: str) -> str:
        """A name that nothing has."""
        name, again = f"{label}/{stem}", 0
        while name in self._taken:
            again += 1
            name = f"{label}/{stem}_{again}"
        self._taken.add(name)
        return name

    def __call__(
        self, kind: str, label: str, *inputs: str, to: str = "", **attributes: Any
    ) -> str:  # fmt: skip
        """A node with one output, named ``to`` where that is given.

        Args:
            label: what new names begin with.
        """
        self._changed = True
        name = self.fresh(label, kind)
        self._nodes.append(helper.make_node(kind, inputs, [to or name], name, **attributes))
        return to or name

    def constant(self, values: Sequence[int]) -> str:
        """Whole numbers; a single one without an axis is ``()``."""
        key = tuple(values)
        if key not in self._constants:
            array = np.array(key, np.int64)
            self._constants[key] = numpy_helper.from_array(array, self.fresh("rows", "constant"))
        return self._constants[key].name

    def node(self, node: onnx.NodeProto, name: str) -> None:
        """A node that has changed."""
        self.other(Op(name, node.op_type, node.domain, (*node.input,), (*node.output,), (), node))

    def other(self, op: Op) -> None:
        """An op, as it is or, where it looks into such a list, as one that reads the tensor."""
        node = onnx.NodeProto()
        node.CopyFrom(op.node)
        node.name, node.input[:], node.output[:] = op.name, op.inputs, op.outputs
        self._write(node, op.name)

    def model(self) -> onnx.ModelProto | None:
        """What was written, in the frame of the graph; None where it is the graph."""
        if not self._changed:
            return None
        model = onnx.ModelProto()
        model.CopyFrom(self.graph.model)
        model.graph.node.extend(self._nodes)
        model.graph.initializer.extend(self._constants.values())
        made = {name for node in self._nodes for name in node.output}
        kept = [value for value in model.graph.value_info if value.name in made]
        del model.graph.value_info[:]
        model.graph.value_info.extend(kept)
        return model

    # ---- parts of it -------------------------------------------------------------------------

    def added(self, label: str, parts: Sequence[str], axis: int | None) -> list[onnx.NodeProto]:
        """Nodes of a body that make one tensor of what a run adds: along an axis that grows, or
        (None) of a list, a row for each if there are several. The last of them makes it."""
        outer, self._nodes = self._nodes, []
        if len(parts) == 1:
            self("Identity", label, parts[0])
        else:
            first = self.constant([0])
            each = parts if axis is not None else [
                self("Unsqueeze", label, part, first) for part in parts
            ]  # fmt: skip
            self("Concat", label, *each, axis=axis or 0)
        made, self._nodes = self._nodes, outer
        return made

    def joined(self, label: str, rows: str, axis: int, to: str = "") -> str:
        """The rows one behind the other along an axis that each has."""
        start, end = (axis, axis + 1 or END) if axis < 0 else (axis + 1, axis + 2)
        count, before, own, rest = self._sizes(label, rows, start, end)
        length = self("Mul", label, count, own)
        behind = self("Concat", label, own, rest, axis=0)
        return self._moved(label, rows, (count, before, behind), (before, length, rest), to)

    def stacked(self, label: str, rows: str, axis: int, to: str = "") -> str:
        """The rows side by side along a new axis."""
        start = (axis + 1 or END) if axis < 0 else axis + 1
        count, before, _, rest = self._sizes(label, rows, start, start)
        return self._moved(label, rows, (count, before, rest), (before, count, rest), to)

    def _sizes(self, label: str, rows: str, start: int, end: int) -> list[str]:
        """How many rows, and the sizes of a row: before an axis, of it, and behind it."""
        shape = self("Shape", label, rows)
        first = self.constant([0])
        cuts = ((0, 1), (1, start), (start, end), (end, END))
        bounds = [(self.constant([low]), self.constant([high])) for low, high in cuts]
        return [self("Slice", label, shape, low, high, first) for low, high in bounds]

    def _moved(
        self, label: str, rows: str, sizes: tuple[str, str, str], whole: tuple[str, str, str],
        to: str,
    ) -> str:  # fmt: skip
        """Rows with their number behind the axes that come before."""
        count, before, behind = sizes
        one = self.constant([1])
        flat = [
            self("ReduceProd", label, self("Concat", label, one, each, axis=0), keepdims=1)
            for each in (before, behind)
        ]
        shape = self("Concat", label, count, *flat, axis=0)
        parts = self("Reshape", label, rows, shape, allowzero=1)
        parts = self("Transpose", label, parts, perm=[1, 0, 2])
        target = self("Concat", label, *whole, axis=0)
        return self("Reshape", label, parts, target, to=to, allowzero=1)

    # ---- what looks into a list --------------------------------------------------------------

    def _write(self, node: onnx.NodeProto, label: str) -> None:
        if node.input and node.input[0] in self.rows and node.op_type in READERS:
            self._read(node, label)
            return
        for body in subgraphs(node):
            outer, self._nodes = self._nodes, []
            for k, inner in enumerate([*body.node]):
                self._write(inner, f"{label}/{inner.name or k}")
            inside, self._nodes = self._nodes, outer
            del body.node[:]
            body.node.extend(inside)
        self._nodes.append(node)

    def _read(self, node: onnx.NodeProto, label: str) -> None:
        """The tensor that an op makes of a list."""
        rows, output = self.rows[node.input[0]], node.output[0]
        told = {each.name: each.i for each in node.attribute}
        if node.op_type == "SequenceAt":
            place = self("Reshape", label, node.input[1], self.constant([]))
            self("Gather", label, rows, place, to=output, axis=0)
        elif node.op_type == "SequenceLength":
            length = self("Shape", label, rows, start=0, end=1)
            self("Reshape", label, length, self.constant([]), to=output)
        elif told.get("new_axis", 0):
            self.stacked(label, rows, told["axis"], output)
        else:
            self.joined(label, rows, told["axis"], output)


def _all_names(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        found.update((node.name, *node.input, *node.output))
        for body in subgraphs(node):
            found.update(value.name for value in (*body.input, *body.output, *body.initializer))
            found |= _all_names(body.node)
    return found
