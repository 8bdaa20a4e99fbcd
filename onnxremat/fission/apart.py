"""Large values in two layouts, held once.

Convolutions in blocks of channels and the ops around them that want channels in order are joined by
copies; where a value is read in both layouts later, it is held twice. With a copy of its own every
reader can make the rows that it needs in its parts, and the value is held once, in blocks. A
convolution that is the last to read such a value (a shortcut) then goes next to the reader before
it, without the sum that it was fused with, so that the value dies part by part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx

from onnxremat.graph.axes import BLOCKED
from onnxremat.graph.ir import Graph, Op, Role, Tensor

APART = "/apart for/"  # between the names of a copy and its reader
PRODUCT, SUM = APART + "product", APART + "sum"  # of a convolution with a sum
LARGE = 8  # such a share of the largest value, at least, is worth a second copy
PARTNER = 3  # position of what a convolution adds to its product


def apart(graph: Graph) -> Graph:
    """The graph with copies for each reader where that is worth it, and with the sums of shortcuts
    apart from their convolutions."""
    writer = _Writer(graph, dict(graph.tensors))
    largest = max((t.bytes for t in graph.tensors.values() if t.role is Role.ACTIVATION), default=0)
    for op in graph.ops:
        if not is_copy(op):
            continue
        readers = graph.readers.get(op.outputs[0], ())
        both = len(readers) > 1 or len(graph.readers[op.inputs[0]]) > 1
        worth = both and LARGE * graph.tensors[op.outputs[0]].bytes >= largest
        for place in readers if worth else ():
            writer.copy(op, place)
    if not writer.shared:
        return graph
    for place, op in enumerate(graph.ops):
        behind = _last_reader(graph, place)
        if behind is not None and op.inputs[0] in writer.shared:
            writer.early(place, behind)
    return writer.written()


def seconds_apart(graph: Graph, known: Mapping[str, float]) -> dict[str, float]:
    """What is known, and a copy for one reader like the copy for all, and convolutions without
    their sums like those with them."""
    names = [op.name for op in graph.ops if APART in op.name and not op.name.endswith(SUM)]
    like = {name: name.partition(APART)[0] for name in names}
    return {**known, **{name: known[of] for name, of in like.items() if of in known}}


def is_copy(op: Op) -> bool:
    return op.domain == BLOCKED and op.op_type == "ReorderOutput"


def _last_reader(graph: Graph, place: int) -> int | None:
    """Of a convolution with a sum that is the last to read a value and makes no larger one, the
    reader before it of that value or of a copy; None for other ops."""
    op = graph.ops[place]
    if op.domain != BLOCKED or op.op_type != "Conv" or len(op.inputs) <= PARTNER:
        return None
    if any(a.name.startswith("activation") for a in op.node.attribute) or not op.inputs[PARTNER]:
        return None
    source = op.inputs[0]
    before = {other for other in graph.readers[source] if other != place}
    for copied in [graph.ops[other] for other in before if is_copy(graph.ops[other])]:
        before.update(graph.readers.get(copied.outputs[0], ()))
    larger = graph.tensors[op.outputs[0]].bytes > graph.tensors[source].bytes
    return None if larger or not before or max(before) > place else max(before)


@dataclass
class _Writer:
    """A graph under way.

    Attributes:
        ops: that stand for each op of the graph.
        shared: values that copies are made of.
    """

    graph: Graph
    tensors: dict[str, Tensor]
    ops: list[list[Op]] = field(init=False)
    shared: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ops = [[op] for op in self.graph.ops]

    def copy(self, op: Op, place: int) -> None:
        """A copy for one reader, right before it."""
        reader, output = self.ops[place][-1], op.outputs[0]
        own = self._like(output, f"{output}{APART}{reader.name}")
        made = op.renamed(f"{op.name}{APART}{reader.name}", {output: own})
        self.ops[place][-1:] = [made, reader.renamed(reader.name, {output: own})]
        self.shared.add(op.inputs[0])

    def early(self, place: int, behind: int) -> None:
        """The product of a convolution behind another op, its sum where it was."""
        op = self.graph.ops[place]
        output = op.outputs[0]
        own = self._like(output, output + PRODUCT)
        product = replace(
            op, name=op.name + PRODUCT, inputs=op.inputs[:PARTNER], outputs=(own, *op.outputs[1:])
        )
        node = onnx.helper.make_node("Add", [own, op.inputs[PARTNER]], [output], op.name + SUM)
        self.ops[behind].append(product)
        both = (own, op.inputs[PARTNER])
        self.ops[place] = [Op(op.name + SUM, "Add", "", both, (output,), (), node)]

    def _like(self, name: str, own: str) -> str:
        self.tensors[own] = replace(self.tensors[name], name=own, role=Role.ACTIVATION)
        return own

    def written(self) -> Graph:
        """Without copies that nobody reads any more."""
        ops = [op for each in self.ops for op in each]
        read = {name for op in ops for name in op.reads}.union(self.graph.outputs)
        ops = [op for op in ops if not is_copy(op) or op.outputs[0] in read]
        made = read.union(self.graph.inputs, *(op.writes for op in ops))
        tensors = {name: t for name, t in self.tensors.items() if name in made}
        return replace(self.graph, ops=tuple(ops), tensors=tensors)
