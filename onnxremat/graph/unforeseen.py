"""Shapes that a session learns only while it runs.

Under default options onnxruntime holds a dead buffer for the next value whose shape it knows to be
the same when it loads the file (``allocation_planner.cc``, ``FindReusableTensor``). Parts of a
region are of one shape, and so is what a plan drops and what it computes again: the buffers of one
would wait for the other, and nothing would be gained. Where shapes are sums with a zero that is
found at run time, no shape behind them follows at load; files give each a name instead, and a
buffer is given back when its value is dead.

What follows from constants alone is computed under default options as the file is loaded, and held
for good: a mask that a plan makes where it is read. It waits for the zero, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.traits import takeover_inputs

ZERO = "fission/zero"  # the lesser of 0 and the size of an input
SHOWN = "onnxremat.shown"  # the same where a plan is carried out; such ops are no steps of it
ADDED = "onnxremat."
# Begins the name of a dimension, which onnxruntime keeps three times: short ones need no block of
# their own. 3,900 values with long names took a megabyte more.
NAMED = "~"
# Input that says how large the output is.
BOUNDS = {"Slice": 2, "Reshape": 1, "Expand": 1, "Resize": 3, "ConstantOfShape": 0, "Tile": 1}
STATED = ("Reshape", "Expand", "Resize", "ConstantOfShape")  # by that alone
LEAST = 16 << 10  # bytes of a value that is not to wait
# Ops whose result has the shape of the first input, and ops whose result has that of any input of
# which no dimension is 1: where it is a constant, the shape is known when the file is loaded.
LIKE_FIRST = ("ScatterElements", "ScatterND")
LIKE_ANY = ("Add", "Div", "Mul", "Sub", "Where")
FIRST = 12  # opset from which the lesser of two integers is there


def unforeseen(graph: Graph, bounds: Collection[str]) -> Graph:
    """The graph with these constants, the bounds of its Slices and Reshapes, found as it runs.

    Args:
        bounds: lists of integers among the weights.
    """
    return _Found(graph, ZERO).made(frozenset(bounds), frozenset())


def all_unforeseen(graph: Graph, known: Collection[str]) -> Graph:
    """The graph with no shape of a value known that depends on its inputs.

    Args:
        known: inputs whose shapes may be known.
    """
    weights = {
        bound
        for op in graph.ops
        if op.standard and op.op_type in STATED and (bound := _bound(graph, op))
        and graph.tensors[op.outputs[0]].bytes >= LEAST
    }  # fmt: skip
    inputs = {n for n in graph.inputs if graph.tensors[n].shape and is_left(graph.tensors[n])}
    found = _Found(graph, SHOWN, _waits(graph))
    hidden = inputs.difference(known) | _first_casts(graph, known) | _telling(graph)
    return found.made(frozenset(weights), frozenset(hidden))


def constants_unforeseen(graph: Graph) -> Graph:
    """The graph with nothing large that follows from constants alone, as far as that goes; shapes
    of other values stay known."""
    waits = _waits(graph)
    return _Found(graph, SHOWN, waits).made(frozenset(), frozenset()) if waits else graph


def _bound(graph: Graph, op: Op) -> str:
    """The constant that says how large an op's output is, "" for none."""
    at = BOUNDS.get(op.op_type, len(op.inputs)) if op.standard else len(op.inputs)
    name = op.inputs[at] if at < len(op.inputs) else ""
    tensor = graph.tensors[name] if name else None
    fits = tensor is not None and tensor.role is Role.WEIGHT and tensor.dtype == TensorProto.INT64
    return name if fits else ""


def _shown_at(graph: Graph, op: Op) -> str:
    """Which constant of an op is to wait for the zero, "" for none: that of its size, else what it
    computes with."""
    if found := _bound(graph, op):
        return found
    name = op.inputs[0] if op.inputs else ""
    tensor = graph.tensors.get(name)
    fits = tensor is not None and tensor.role is Role.WEIGHT and tensor.shape is not None
    return name if tensor is not None and fits and is_left(tensor) else ""


def _waits(graph: Graph) -> dict[str, str]:
    """Which constant of an op is to wait for the zero, by the op."""
    return {op.name: where for op in _first_constants(graph) if (where := _shown_at(graph, op))}


def _first_constants(graph: Graph) -> list[Op]:
    """Ops that read weights alone, one for each large value that follows from weights alone: what
    that value is made of first."""
    made, places = graph.producer, dict[str, Op]()
    first = dict[int, int]()  # of ops of constants
    for place, op in enumerate(graph.ops):
        makers = [made.get(name) for name in op.reads]
        others = [at for at in makers if at is not None]
        read = all(
            at in first if at is not None else graph.tensors[name].role is Role.WEIGHT
            for name, at in zip(op.reads, makers, strict=True)
        )
        if not op.reads or not read:
            continue
        first[place] = first[others[0]] if others else place
        if any(graph.tensors[name].bytes >= LEAST for name in op.writes):
            root = graph.ops[first[place]]
            places[root.name] = root
    return list(places.values())


def _telling(graph: Graph) -> set[str]:
    """Large constants that tell the shape of what an op makes of them and of computed values."""
    found = set[str]()
    for op in graph.ops:
        if not op.standard or op.op_type not in LIKE_FIRST + LIKE_ANY:
            continue
        tensors = [graph.tensors[name] for name in op.reads]
        shape = graph.tensors[op.outputs[0]].shape
        if not shape or all(tensor.role is Role.WEIGHT for tensor in tensors):
            continue
        first = op.op_type in LIKE_FIRST
        for tensor in tensors[:1] if first else tensors:
            tells = first or (tensor.shape == shape and 1 not in shape)
            large = tensor.role is Role.WEIGHT and tensor.bytes >= LEAST
            if tells and large and is_left(tensor):
                found.add(tensor.name)
    return found


def _first_casts(graph: Graph, known: Collection[str]) -> set[str]:
    """What is first made of inputs of half precision in a type that is left as it is: their shapes
    are hidden there."""
    tensors = graph.tensors
    behind = {n for n in graph.inputs if tensors[n].shape and not is_left(tensors[n])}
    behind.difference_update(known)
    found = set[str]()
    for op in graph.ops:
        if behind.isdisjoint(op.reads):
            continue
        first = op.standard and op.op_type == "Cast" and is_left(tensors[op.outputs[0]])
        (found if first else behind).update(op.writes)
    return {name for name in found if tensors[name].shape}


def is_left(tensor: Tensor) -> bool:
    """Whether onnxruntime leaves an op that reads a value as it is. Between Casts it computes what
    is of half precision in float32, and Casts that it adds for that run late, in another order than
    was planned."""
    return tensor.dtype not in (0, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def none_of(tensor: Tensor, nowhere: str, rows: str, none: str) -> list[tuple[Op, Tensor]]:
    """None of a value's rows, as integers: what Size is to read of half precision, since
    onnxruntime would run it on a copy of all as float32.

    Args:
        nowhere: a list of no indices.
        rows, none: names of what is made; the last is to be read.
    """
    shape = (0, *(tensor.shape or ())[1:])
    made = []
    for kind, read, name, dtype, how in (
        ("Gather", (tensor.name, nowhere), rows, tensor.dtype, {}),
        ("Cast", (rows,), none, TensorProto.INT64, {"to": TensorProto.INT64}),
    ):
        node = onnx.helper.make_node(kind, read, [name], name=name, **how)
        op = Op(name, kind, "", read, (name,), (), node)
        made.append((op, Tensor(name, dtype, shape, 0, Role.ACTIVATION)))
    return made


class _Found:
    """Shapes found as a graph runs.

    Attributes:
        zero: what the ops that find them are called after.
        shown: constants that some ops read so, by these.
    """

    def __init__(self, graph: Graph, zero: str, shown: Mapping[str, str] | None = None) -> None:
        self.graph, self.zero, self.shown = graph, zero, shown or {}
        self.tensors = dict(graph.tensors)
        self.ops: list[Op] = []
        self.constants: list[onnx.TensorProto] = []
        self.names = dict[str, str]()  # of a constant or value to what is read in its place

    def made(self, bounds: frozenset[str], values: frozenset[str]) -> Graph:
        """The graph that reads these constants, and values so."""
        graph = self.graph
        sized = [name for name in graph.inputs if graph.tensors[name].dtype]
        sized.sort(key=lambda name: not is_left(graph.tensors[name]))
        if not sized or graph.opsets.get("", 1) < FIRST:
            return graph
        self._zero(sized[0])
        kept, fed = list[Op](), frozenset(graph.inputs)
        for each in graph.ops:
            read = list(each.inputs)
            at = BOUNDS.get(each.op_type, len(read)) if each.standard else len(read)
            if at < len(read) and read[at] in bounds:
                read[at] = self._sum(read[at])
            if not (each.op_type in ("Shape", "Size") or each.name.startswith(ADDED)):
                read = [
                    self._shown(n, self.ops if n in fed else kept) if n in values else n
                    for n in read
                ]
            if each.name in self.shown:
                read = self._waiting(each, read)
            kept.append(replace(each, inputs=tuple(read)))
        if not self.names:
            return graph
        return graph.with_ops((*self.ops, *kept), self.tensors).with_weights(self.constants)

    def _waiting(self, op: Op, read: list[str]) -> list[str]:
        """What an op of constants reads, one of these with the zero."""
        wanted = self.shown[op.name]
        if wanted not in read:
            return read  # as one of its bounds already
        sized = wanted == _bound(self.graph, op)
        return [
            name if name != wanted else self._sum(name) if sized else self._shown(name, self.ops)
            for name in read
        ]

    def _zero(self, name: str) -> None:
        none = self._constant("none", np.zeros((), np.int64))
        tensor = self.tensors[name]
        if not is_left(tensor) and tensor.shape:  # Size would read all of it, as float32
            nowhere = self._constant("nowhere", np.zeros(0, np.int64))
            made = none_of(tensor, nowhere, f"{self.zero}_rows", name := f"{self.zero}_cast")
            self.ops += [op for op, _ in made]
            self.tensors |= {each.name: each for _, each in made}
        self._op("Size", [name], f"{self.zero}_size", TensorProto.INT64, ())
        self._op("Min", [f"{self.zero}_size", none], self.zero, TensorProto.INT64, ())

    def _sum(self, name: str) -> str:
        """A list of integers plus zero."""
        if name not in self.names:
            shape = self.tensors[name].shape or ()
            made = self._op(
                "Add", [name, self.zero], f"{self.zero}/{name}", TensorProto.INT64, shape
            )
            self.names[name] = made
        return self.names[name]

    def _shown(self, name: str, ops: list[Op]) -> str:
        """A value in a shape of as many zeros: a Reshape to them copies every dimension.

        Args:
            ops: behind which that is done.
        """
        if name not in self.names:
            tensor = self.tensors[name]
            rank = len(tensor.shape or ())
            zeros = f"{self.zero}_rank{rank}"
            if zeros not in self.tensors:
                self._constant(f"rank{rank}", np.zeros(rank, np.int64))
            made = f"{self.zero}/{name}"
            read = [name, self._sum(zeros)]
            self._op("Reshape", read, made, tensor.dtype, tensor.shape or (), ops)
            self.names[name] = made
        return self.names[name]

    def _constant(self, name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
        made = numpy_helper.from_array(value, f"{self.zero}_{name}")
        self.constants.append(made)
        shape = tuple(value.shape)
        self.tensors[made.name] = Tensor(
            made.name, TensorProto.INT64, shape, value.nbytes, Role.WEIGHT
        )
        return made.name

    def _op(
        self,
        kind: str,
        inputs: list[str],
        output: str,
        dtype: int,
        shape: tuple[int, ...],
        ops: list[Op] | None = None,
    ) -> str:
        size = self.tensors[inputs[0]].bytes if kind == "Reshape" else 8 * int(np.prod(shape))
        self.tensors[output] = Tensor(output, dtype, shape, size, Role.ACTIVATION)
        node = onnx.helper.make_node(kind, inputs, [output], name=output)
        behind = self.ops if ops is None else ops
        behind.append(Op(output, kind, "", tuple(inputs), (output,), (), node))
        return output


def foreseen(values: Iterable[onnx.ValueInfoProto]) -> None:
    """Have what a file says of its values tell the numbers behind names (:func:`told`)."""
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            size, _, name = dim.dim_param.removeprefix(NAMED).partition("/")
            if dim.dim_param.startswith(NAMED) and size.isdecimal() and name:
                dim.dim_value = int(size)


def told(graph: Graph) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    """The shape of each value that ops write, as a file may say it.

    Of what is made of the zero all dimensions are names, the numbers in them: the same for a value
    and those that take over its buffer. onnxruntime lets a value take over another's only where it
    knows the same of both. Were one dimension a name and the others numbers, a Transpose that moves
    it would let onnxruntime put all numbers together. Pins, which are listed at the end, read a
    value as soon as it is there: they keep nothing from taking it over.
    """
    marks = (ADDED, ZERO) if SHOWN in graph.tensors else (ZERO,) if ZERO in graph.tensors else ()
    names, last = dict[str, str](), _last_readers(graph) if marks else {}
    for place, op in enumerate(graph.ops):
        behind = bool(marks) and any(n in names or n.startswith(marks) for n in op.reads)
        for output in op.writes:
            tensor = graph.tensors.get(output)
            if tensor is None or tensor.shape is None or tensor.seen:
                continue
            if not behind or not tensor.shape:
                yield output, tensor.shape
                continue
            taken = [
                op.inputs[at] for at in takeover_inputs(op)
                if op.inputs[at] in names and last[op.inputs[at]] == place
                and graph.tensors[op.inputs[at]].shape == tensor.shape
            ]  # fmt: skip
            names[output] = names[taken[0]] if taken else f"{len(names):x}"
            yield output, tuple(f"{NAMED}{size}/{names[output]}" for size in tensor.shape)


def _last_readers(graph: Graph) -> dict[str, int]:
    """The place of the last op that reads a value, pins aside."""
    last = dict[str, int]()
    for place, op in enumerate(graph.ops):
        if not (op.op_type == "Size" and op.name.startswith(ADDED)):
            last.update(dict.fromkeys(op.reads, place))
    return last
