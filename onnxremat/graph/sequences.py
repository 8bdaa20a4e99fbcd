"""Sequences of tensors whose length and positions are known, written as plain tensors.

Exporters write ``chunk``, ``split``, ``stack`` and lists of tensors as sequences. A sequence is
opaque to planning and differentiation, while its elements are ordinary tensors: where it is known
which elements a sequence has, SplitToSequence is a Split, SequenceAt is one of its outputs,
ConcatFromSequence is a Concat, and the rest needs no op at all. The values are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.graph.ir import Graph, Op

ValueOf = Callable[[str], np.ndarray | None]
AXES_AS_INPUT = 13  # opset from which Split and the squeezes take sizes and axes as inputs
MAKERS = frozenset({"SequenceEmpty", "SequenceConstruct", "SplitToSequence"})
CHANGES = frozenset({"Identity", "SequenceInsert", "SequenceErase"})
READERS = frozenset({"SequenceAt", "SequenceLength", "ConcatFromSequence"})


def without_sequences(graph: Graph, value_of: ValueOf) -> onnx.ModelProto | None:
    """The model with known sequences as plain tensors, None when there is none.

    A sequence stays as it is, with all it is made of and made into, where the size that is split,
    a position or an axis is not known before the run, or where a body, an output of the graph or
    another kind of operator takes the sequence itself. Sizes found by the rewrite may make further
    ones known: infer types again and call it again, until it gives None.

    Args:
        graph: typed, as far as sizes are known.
        value_of: value of a tensor known before the run, else None.
    """
    if not any(op.standard and op.op_type in MAKERS for op in graph.ops):
        return None
    writer = _Writer(graph, value_of, _known(graph, value_of))
    if not writer.known:
        return None
    for op in graph.ops:
        writer.write(op)
    return writer.model()


# ---- which sequences are known ------------------------------------------------------------------


def _known(graph: Graph, value_of: ValueOf) -> set[str]:
    """Names of the sequences to be rewritten."""
    counts: dict[str, int] = {}  # elements per sequence whose making is understood
    linked: dict[str, set[str]] = {}  # sequences made from each other
    opaque: set[str] = set()
    for op in graph.ops:
        made = _count(op, graph, value_of, counts)
        sequences = [name for name in op.reads if name in linked]
        if made is not None:
            counts[op.outputs[0]] = made
        elif not _understood(op, value_of, counts):
            opaque.update(sequences)
        if made is not None or (op.standard and op.op_type in MAKERS | CHANGES - {"Identity"}):
            linked.setdefault(op.outputs[0], set())
            for name in sequences:
                linked[name].add(op.outputs[0])
                linked[op.outputs[0]].add(name)
    opaque |= (linked.keys() - counts.keys()) | (linked.keys() & set(graph.outputs))
    waiting = list(opaque)
    while waiting:
        found = linked[waiting.pop()] - opaque
        opaque |= found
        waiting += found
    return linked.keys() - opaque


def _count(op: Op, graph: Graph, value_of: ValueOf, counts: dict[str, int]) -> int | None:
    """Elements of the sequence that an op makes, None when it makes none or it is not known."""
    if not op.standard:
        return None
    if op.op_type == "SequenceEmpty":
        return 0
    if op.op_type == "SequenceConstruct":
        return len(op.inputs)
    if op.op_type == "SplitToSequence":
        sizes = _sizes(op, graph, value_of)
        return None if sizes is None else len(sizes)
    if op.op_type not in CHANGES or op.inputs[0] not in counts:
        return None
    count, position = counts[op.inputs[0]], op.op_type == "SequenceInsert"
    if op.op_type == "Identity":
        return count
    if _place(op, 1 + position, count, value_of, end=position) is None:
        return None
    return count + 1 if position else count - 1


def _understood(op: Op, value_of: ValueOf, counts: dict[str, int]) -> bool:
    """Whether an op makes tensors of a sequence in a way that can be written without it."""
    if not op.standard or op.op_type not in READERS or op.inputs[0] not in counts:
        return False
    count = counts[op.inputs[0]]
    if op.op_type == "SequenceAt":
        return _place(op, 1, count, value_of) is not None
    return op.op_type == "SequenceLength" or count > 0


def _place(op: Op, position: int, count: int, value_of: ValueOf, end: bool = False) -> int | None:
    """Where an op reads, erases or inserts (``end``: also behind the last element)."""
    if position >= len(op.inputs) or not op.inputs[position]:
        return count - (not end) if count or end else None
    value = value_of(op.inputs[position])
    if value is None or value.size != 1:
        return None
    place = int(value.reshape(()))
    place += count if place < 0 else 0
    return place if 0 <= place < count + end else None


def _sizes(op: Op, graph: Graph, value_of: ValueOf) -> list[int] | None:
    """What SplitToSequence cuts its axis into."""
    shape = graph.tensors[op.inputs[0]].shape
    if not shape:
        return None
    length = shape[_attribute(op, "axis", 0)]
    if len(op.inputs) < 2 or not op.inputs[1]:
        return [1] * length
    value = value_of(op.inputs[1])
    if value is None or (value.ndim == 0 and value <= 0):
        return None
    if value.ndim:
        sizes = [int(size) for size in value.reshape(-1)]
    else:
        size = int(value)
        sizes = [min(size, length - start) for start in range(0, length, size)]
    # ONNX says that keepdims counts for nothing where sizes are given; onnxruntime squeezes all the
    # same, as exporters expect of ``unbind``, and fails where a part is longer than 1.
    fits = _attribute(op, "keepdims", 1) or set(sizes) == {1}
    return sizes if fits and sum(sizes) == length and min(sizes, default=0) >= 0 else None


def _attribute(op: Op, name: str, default: int) -> int:
    return next((int(a.i) for a in op.node.attribute if a.name == name), default)


# ---- the model without them ---------------------------------------------------------------------


@dataclass
class _Writer:
    """Writes the ops of a graph again, known sequences as lists of tensor names."""

    graph: Graph
    value_of: ValueOf
    known: set[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    elements: dict[str, list[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of tensors that need no op any more
    given: set[str] = field(default_factory=set)  # names that are new

    def write(self, op: Op) -> None:
        """The nodes that stand for an op."""
        op = op.renamed(op.name, self.names)
        if op.outputs and op.outputs[0] in self.known:
            self.elements[op.outputs[0]] = self._made(op)
        elif op.inputs and op.inputs[0] in self.known:
            self._read(op)
        else:
            self._emit(op.node, op.name, op.inputs, op.outputs)

    def model(self) -> onnx.ModelProto:
        """What was written, in the frame of the graph."""
        model = onnx.ModelProto()
        model.CopyFrom(self.graph.model)
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(self.constants)
        made = {name for node in self.nodes for name in node.output}
        kept = [value for value in model.graph.value_info if value.name in made]
        del model.graph.value_info[:]
        model.graph.value_info.extend(kept)
        return model

    def _made(self, op: Op) -> list[str]:
        if op.op_type == "SplitToSequence":
            return self._split(op)
        if op.op_type in ("SequenceEmpty", "SequenceConstruct"):
            return list(op.inputs)
        rest = list(self.elements[op.inputs[0]])
        if op.op_type == "Identity":
            return rest
        inserts = op.op_type == "SequenceInsert"
        place = _place(op, 1 + inserts, len(rest), self.value_of, end=inserts)
        assert place is not None, "known sequences have known positions"
        if inserts:
            rest.insert(place, op.inputs[1])
        else:
            del rest[place]
        return rest

    def _split(self, op: Op) -> list[str]:
        sizes = _sizes(op, self.graph, self.value_of)
        assert sizes is not None, "known sequences have known sizes"
        axis = _attribute(op, "axis", 0)
        if len(sizes) == 1:
            parts = [op.inputs[0]]
        else:
            parts = [self._fresh(op, f"part{k}") for k in range(len(sizes))]
            if parts:
                node = helper.make_node("Split", [op.inputs[0]], parts, op.name, axis=axis)
                self._emit_sized(node, op, "split", sizes)
        if _attribute(op, "keepdims", 1):
            return parts
        return [self._reaxed("Squeeze", op, part, axis) for part in parts]

    def _read(self, op: Op) -> None:
        """A tensor made of a sequence: mostly another name for an element."""
        parts, output = self.elements[op.inputs[0]], op.outputs[0]
        if op.op_type == "SequenceLength":
            value = np.array(len(parts), np.int64)
            self.constants.append(numpy_helper.from_array(value, self._fresh(op, "length")))
            self._rename(output, self.constants[-1].name, op)
        elif op.op_type == "SequenceAt":
            place = _place(op, 1, len(parts), self.value_of)
            assert place is not None, "known sequences have known positions"
            self._rename(output, parts[place], op)
        else:
            axis = _attribute(op, "axis", 0)
            if _attribute(op, "new_axis", 0):
                parts = [self._reaxed("Unsqueeze", op, part, axis) for part in parts]
            node = helper.make_node("Concat", parts, [output], axis=axis)
            self._emit(node, op.name, parts, [output])

    def _rename(self, old: str, new: str, op: Op) -> None:
        if old in self.graph.outputs:
            self._emit(helper.make_node("Identity", [new], [old]), op.name, [new], [old])
        else:
            self.names[old] = new

    def _reaxed(self, kind: str, op: Op, name: str, axis: int) -> str:
        """Without an axis of length 1, or with one more."""
        made = self._fresh(op, kind.lower())
        self._emit_sized(helper.make_node(kind, [name], [made], made), op, "axes", [axis])
        return made

    def _emit_sized(self, node: onnx.NodeProto, op: Op, setting: str, values: list[int]) -> None:
        """A node with a list of integers, an input or (in old opsets) an attribute of it."""
        inputs = list(node.input)
        if self.graph.opsets.get("", 1) < AXES_AS_INPUT:
            node.attribute.append(helper.make_attribute(setting, values))
        else:
            stored = self._fresh(op, f"{setting}{len(self.constants)}")
            value = np.array(values, np.int64)
            self.constants.append(numpy_helper.from_array(value, stored))
            inputs.append(stored)
        self._emit(node, node.name, inputs, list(node.output))

    def _emit(
        self, node: onnx.NodeProto, name: str, inputs: list[str] | tuple[str, ...],
        outputs: list[str] | tuple[str, ...],
    ) -> None:  # fmt: skip
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = name
        copy.input[:], copy.output[:] = inputs, outputs
        self.nodes.append(copy)

    def _fresh(self, op: Op, stem: str) -> str:
        """A name that no tensor has."""
        name, again = f"{op.name}/{stem}", 0
        taken = self.graph.tensors.keys()
        while name in taken or name in self.given:
            again += 1
            name = f"{op.name}/{stem}_{again}"
        self.given.add(name)
        return name
