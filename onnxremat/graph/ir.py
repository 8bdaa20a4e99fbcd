"""What is computed: ops in order, and the tensors they read and write.

Names are the ids: ONNX guarantees each tensor name one writer, and :func:`onnx_io.read` gives
every op a unique name. The order of ``Graph.ops`` is part of the value: it is a topological
order, and rewriting it means a new Graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import onnx


class Role(Enum):
    """Why a tensor exists."""

    INPUT = "input"
    WEIGHT = "weight"
    ACTIVATION = "activation"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the graph.

    Attributes:
        name: unique in the graph.
        dtype: ``onnx.TensorProto`` element type; 0 when the value is no tensor or unknown.
        shape: dimensions, None when unknown; every dimension is bound to a number.
        bytes: size in memory, 0 when unknown.
        role: see :class:`Role`.
        seen: its shape depends on data, and is that of one run: to plan with, and never told to
            onnxruntime, which would compute with it and place values by it.
    """

    name: str
    dtype: int
    shape: tuple[int, ...] | None
    bytes: int
    role: Role
    seen: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """A node.

    Attributes:
        name: unique in the graph.
        inputs: tensor names, "" for an absent optional input.
        outputs: tensor names, "" for an absent optional output.
        captures: outer tensors that bodies of If, Loop and Scan read.
        node: the ONNX node, for attributes and metadata (its inputs and outputs are not used).
        origin: name of the op this one recomputes, "" for an op of the user's model.
        reads: all tensors read, captures included, without absent ones and repeats.
        writes: all tensors written, without absent ones.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...]
    node: onnx.NodeProto = field(repr=False, compare=False)
    origin: str = ""
    reads: tuple[str, ...] = field(init=False, repr=False, compare=False)
    writes: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reads = tuple(dict.fromkeys(filter(None, self.inputs + self.captures)))
        object.__setattr__(self, "reads", reads)
        object.__setattr__(self, "writes", tuple(filter(None, self.outputs)))

    @property
    def operands(self) -> tuple[str, ...]:
        """Inputs, then captures."""
        return self.inputs + self.captures

    @property
    def standard(self) -> bool:
        """True for operators of the default ONNX domain."""
        return self.domain in ("", "ai.onnx")

    def renamed(self, name: str, names: Mapping[str, str], origin: str | None = None) -> Op:
        """A copy with another name (and origin, where given) whose tensors are renamed."""
        node = self.node
        if any(captured in names for captured in self.captures):
            node = rename_captures(node, names)
        return replace(
            self,
            name=name,
            inputs=tuple(names.get(i, i) for i in self.inputs),
            outputs=tuple(names.get(o, o) for o in self.outputs),
            captures=tuple(names.get(c, c) for c in self.captures),
            node=node,
            origin=self.origin if origin is None else origin,
        )


@dataclass(frozen=True)
class Graph:
    """An ordered graph and the model it came from.

    Attributes:
        ops: in a topological order.
        tensors: every tensor read or written by an op, and every input and output.
        inputs: tensors the caller feeds (initializers excluded), in signature order.
        outputs: tensors the caller gets, in signature order.
        model: everything but the nodes: initializers (by reference where external), signature,
            opsets, metadata, doc strings. Its ``graph.node`` is empty.
    """

    ops: tuple[Op, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: onnx.ModelProto = field(repr=False, compare=False)

    @cached_property
    def optional(self) -> frozenset[str]:
        """Weights that may be given as inputs: no constants, which kernels do not pack."""
        listed = (self.tensors.get(value.name) for value in self.model.graph.input)
        return frozenset(t.name for t in listed if t is not None and t.role is Role.WEIGHT)

    def is_constant(self, tensor: Tensor) -> bool:
        """A weight that every run reads as it is."""
        return tensor.role is Role.WEIGHT and tensor.name not in self.optional

    @cached_property
    def producer(self) -> dict[str, int]:
        """Tensor name to the index of the op that writes it."""
        return {name: index for index, op in enumerate(self.ops) for name in op.writes}

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """Tensor name to the indices of the ops that read it, ascending."""
        found: dict[str, list[int]] = {}
        for index, op in enumerate(self.ops):
            for name in op.reads:
                found.setdefault(name, []).append(index)
        return {name: tuple(rows) for name, rows in found.items()}

    @cached_property
    def names_inside(self) -> frozenset[str]:
        """Tensors of the bodies of If, Loop and Scan: no other tensor may have such a name."""
        bodies = (body for op in self.ops for body in subgraphs(op.node))
        return frozenset(name for body in bodies for name in _names(body))

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all initializers."""
        return sum(t.bytes for t in self.tensors.values() if t.role is Role.WEIGHT)

    @property
    def input_bytes(self) -> int:
        """Bytes the caller holds for the inputs; no budget counts them."""
        return sum(t.bytes for t in self.tensors.values() if t.role is Role.INPUT)

    @property
    def result_bytes(self) -> int:
        """Bytes of the outputs that ops make, one that is given twice counted once."""
        made = self.producer
        return sum(self.tensors[name].bytes for name in set(self.outputs) if name in made)

    @property
    def opsets(self) -> dict[str, int]:
        """Operator set version per domain ("" is the default domain)."""
        return {
            "" if entry.domain == "ai.onnx" else entry.domain: entry.version
            for entry in self.model.opset_import
        }

    def predecessors(self) -> list[list[int]]:
        """For each op the ops whose outputs it reads, ascending, without repeats."""
        made = self.producer
        return [sorted({made[name] for name in op.reads if name in made}) for op in self.ops]

    def with_ops(self, ops: Iterable[Op], tensors: Mapping[str, Tensor] | None = None) -> Graph:
        """The same signature with other ops (and, where given, other tensors)."""
        return replace(self, ops=tuple(ops), tensors=self.tensors if tensors is None else tensors)

    def with_weights(self, weights: Iterable[onnx.TensorProto]) -> Graph:
        """The same with more initializers in its model; what it knows of them is in its tensors."""
        frame = onnx.ModelProto()
        frame.CopyFrom(self.model)
        frame.graph.initializer.extend(weights)
        return replace(self, model=frame)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Bodies of a control-flow node."""
    bodies = []
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            bodies.append(attribute.g)
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            bodies.extend(attribute.graphs)
    return bodies


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph or function and of the bodies in it."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def _names(body: onnx.GraphProto) -> Iterator[str]:
    """Tensors that a body has of its own, or the bodies in it do."""
    yield from (value.name for value in body.input)
    yield from (tensor.name for tensor in body.initializer)
    yield from (tensor.values.name for tensor in body.sparse_initializer)
    for node in body.node:
        yield from node.output
        for inner in subgraphs(node):
            yield from _names(inner)


def captures(node: onnx.NodeProto) -> tuple[str, ...]:
    """Outer tensors that the bodies of a control-flow node read, in order of first use."""
    found: list[str] = []
    for body in subgraphs(node):
        inner = {value.name for value in body.input} | {t.name for t in body.initializer}
        inner |= {t.values.name for t in body.sparse_initializer}
        for child in body.node:
            found += [n for n in (*child.input, *captures(child)) if n and n not in inner]
            inner.update(child.output)
        found += [out.name for out in body.output if out.name not in inner]
    return tuple(dict.fromkeys(found))


def rename_captures(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy of a control-flow node whose bodies read renamed outer tensors."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for body in subgraphs(copy):
        inner = {value.name for value in body.input} | {t.name for t in body.initializer}
        inner |= {t.values.name for t in body.sparse_initializer}
        inner |= {name for child in body.node for name in child.output}
        outer = {old: new for old, new in names.items() if old not in inner}
        for child in body.node:
            child.input[:] = [outer.get(name, name) for name in child.input]
            if subgraphs(child):
                child.CopyFrom(rename_captures(child, outer))
        # A body output that is an outer tensor cannot be renamed in the signature without an op.
        for out in body.output:
            if out.name in outer:
                inner_name = f"{out.name}__captured"
                body.node.add(op_type="Identity", input=[outer[out.name]], output=[inner_name])
                out.name = inner_name
    return copy
