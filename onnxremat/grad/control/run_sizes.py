"""Sizes that only a run knows: of what NonZero finds, and of all that follows from it.

Rules compute with numbers. So until a graph is whole each such size has a number that stands for
it, a prime; then every constant that came of it is replaced by ops that compute it as the graph
runs (:mod:`onnxremat.grad.control.sized_at_run`). That nothing else came of these numbers is shown
by doing all of it twice, with other primes: both graphs have to be the same, else the model is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice

import onnx
from onnx import TensorProto as T
from onnx import helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad.constants import LIMIT, Constants
from onnxremat.grad.control.loops import always_goes_on
from onnxremat.graph.fixed_counts import fixed_count
from onnxremat.graph.ir import Graph, Op

# What they make of values is not told by the ops before them.
DRAWN = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
    "Multinomial", "Dropout",
})  # fmt: skip
FAR = 1 << 62  # bounds of slices that mean the end
SAME_COUNT = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})
Typed = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Place:
    """A tensor and its axis that is so many times as long as a size."""

    name: str
    axis: int
    times: int


class RunSizes:
    """The sizes of one model that only a run knows, each with a number that stands for it.

    Attributes:
        places: where the size is found as the graph runs, by the number that stands for it.
        fixed: what is to be said of sizes that the model has as numbers, by the tensor that is so
            large.

    Args:
        turn: 0 or 1: of which of two sets of primes the numbers are.
    """

    def __init__(self, turn: int = 0) -> None:
        self.places: dict[int, Place] = {}
        self.fixed: dict[str, str] = {}
        self._known: dict[str, tuple[tuple[str, ...], list[Typed]]] = {}  # by first output
        self._by_mask: dict[object, int] = {}
        self._primes = islice(_primes(), turn, None, 2)

    def name(self, graph: Graph, variable: Collection[str], *, sure: bool) -> bool:
        """Give numbers to sizes that are not known and made by an op whose inputs are; whether
        there were any. NonZeros of equal masks find equally many.

        Args:
            variable: initializers that may be trained.
            sure: only to sizes that depend on the values of an input of the model.
        """
        data = _of_data(graph) if sure else frozenset()
        waiting = [op for op in graph.ops if self._waits(graph, op)]
        waiting = [op for op in waiting if not sure or not data.isdisjoint(op.reads)]
        constant_of = Constants(graph, variable)
        values = _values(graph) if waiting else {}
        found = False
        for op in waiting:
            makes = _MAKERS[op.op_type]
            fixed = fixed_count(graph, op, constant_of)
            number, times = (fixed.count, 1) if fixed else self._number(graph, op, values)
            made = makes(graph, op, number * times)
            if made is None:
                continue
            self._known[op.outputs[0]] = op.outputs, made
            if fixed:
                self.fixed[op.outputs[0]] = fixed.note
            place = self.places.get(number)
            if not fixed and (place is None or place.times > times):
                self.places[number] = Place(op.outputs[0], made[0][1].index(number * times), times)
            found = True
        return found

    def _waits(self, graph: Graph, op: Op) -> bool:
        """Whether an op makes what only its data tell the size of, and has no number yet."""
        return (
            op.standard and op.op_type in _MAKERS and op.outputs[0] not in self._known
            and graph.tensors[op.outputs[0]].shape is None
            and graph.tensors[op.inputs[0]].shape is not None
        )  # fmt: skip

    def _number(self, graph: Graph, op: Op, values: dict[str, object]) -> tuple[int, int]:
        """The number for what an op finds, one for all that find equally much; and how often."""
        read, times = [name for name in op.inputs if name], 1
        if op.op_type == "NonZero":
            first, times = _counted(graph, read[0])
            read = [first]
        what = (op.op_type, *(values[name] for name in read))
        if what not in self._by_mask:
            self._by_mask[what] = next(self._primes)
        return self._by_mask[what], times

    def runs_of(self, graph: Graph, op: Op, rows: str) -> int:
        """A number for how often a Loop runs: one for all that run as often as the same count says.

        Args:
            rows: one of its results, of which each run makes a row.
        """
        read = [_values(graph)[name] if name else "" for name in op.inputs[:2]]
        key = ("Loop", *read) if op.inputs[0] and always_goes_on(op) else ("Loop", op.name)
        if key not in self._by_mask:
            self._by_mask[key] = next(self._primes)
        self.places.setdefault(self._by_mask[key], Place(rows, 0, 1))
        return self._by_mask[key]

    def state(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Tell in a model what is known of the outputs of such ops; returns the model."""
        if not self._known:
            return model
        written = {node.output[0] for node in model.graph.node if node.output}
        stated = {
            name: helper.make_tensor_value_info(name, *typed)
            for first, (names, made) in self._known.items() if first in written
            for name, typed in zip(names, made, strict=False) if name
        }  # fmt: skip
        kept = [value for value in model.graph.value_info if value.name not in stated]
        del model.graph.value_info[:]
        model.graph.value_info.extend([*kept, *stated.values()])
        return model

    def factors(self, value: int) -> tuple[int, tuple[int, ...]]:
        """A whole number as a plain number times numbers that stand for sizes."""
        found: list[int] = []
        if 0 < abs(value) < FAR:
            for number in self.places:
                while value % number == 0:
                    value //= number
                    found.append(number)
        return value, tuple(found)

    def varies(self, value: int) -> bool:
        """Whether a number is made of one that stands for a size."""
        return bool(self.factors(value)[1])

    def require_none(self, what: str) -> None:
        """Raises:
        UnsupportedError: there are such sizes; ``what`` says what therefore does not go.
        """
        for place in self.places.values():
            raise UnsupportedError(
                what, why=f"how many rows there are in '{place.name}', and which, depends on data"
            )


def _primes() -> Iterator[int]:
    """Primes above what is computed ahead (:data:`onnxremat.grad.constants.LIMIT`)."""
    number = LIMIT + 1
    while True:
        if all(number % k for k in range(3, math.isqrt(number) + 1, 2)):
            yield number
        number += 2


def _values(graph: Graph) -> dict[str, object]:
    """A key for each tensor; those of one key hold the same values."""
    keys: dict[str, object] = {name: name for name in graph.tensors}
    numbers: dict[object, int] = {}
    for op in graph.ops:
        settings = tuple(sorted(a.SerializeToString() for a in op.node.attribute))
        read = tuple(keys[name] if name else "" for name in (*op.inputs, *op.captures))
        own = op.name if op.op_type in DRAWN else ""
        made = numbers.setdefault((op.op_type, op.domain, settings, read, own), len(numbers))
        keys.update((name, (made, k)) for k, name in enumerate(op.outputs) if name)
    return keys


def _counted(graph: Graph, name: str) -> tuple[str, int]:
    """The first tensor before this one that tells how many of its elements are not 0, and by what
    its own number of such elements is to be multiplied."""
    times = 1
    while name in graph.producer:
        op = graph.ops[graph.producer[name]]
        kinds = {graph.tensors[each].dtype for each in (*op.inputs[:1], *op.outputs)}
        truth = op.op_type == "Cast" and T.BOOL in kinds  # 0 stays 0, and nothing else becomes 0
        small, large = (graph.tensors[each].shape for each in (op.inputs[0], name))
        if not op.standard or not (truth or op.op_type in SAME_COUNT):
            if not op.standard or op.op_type != "Expand" or not small or not large:
                break
            if 0 in small or math.prod(large) % math.prod(small):
                break
            times *= math.prod(large) // math.prod(small)
        name = op.inputs[0]
    return name, times


def _of_data(graph: Graph) -> frozenset[str]:
    """Tensors that depend on values of the model's inputs."""
    found = set(graph.inputs)
    for op in graph.ops:
        if not found.isdisjoint(op.reads) and op.op_type not in ("Shape", "Size"):
            found.update(op.writes)
    return frozenset(found)


# ---- ops whose result is as large as their data say ------------------------------------------


def _non_zero(graph: Graph, op: Op, number: int) -> list[Typed] | None:
    rank = len(graph.tensors[op.inputs[0]].shape or ())
    return [(T.INT64, (rank, number))] if rank else None


def _unique(graph: Graph, op: Op, number: int) -> list[Typed] | None:
    data = graph.tensors[op.inputs[0]]
    if any(a.name == "axis" for a in op.node.attribute):
        return None
    count = math.prod(data.shape or ())
    return [(data.dtype, (number,)), *((T.INT64, (n,)) for n in (number, count, number))]


def _non_max_suppression(graph: Graph, op: Op, number: int) -> list[Typed] | None:
    return [(T.INT64, (number, 3))]


_MAKERS: dict[str, Callable[[Graph, Op, int], list[Typed] | None]] = {
    "NonZero": _non_zero,
    "Unique": _unique,
    "NonMaxSuppression": _non_max_suppression,
}


# ---- the proof -------------------------------------------------------------------------------


def same_for_all(
    build: Callable[[RunSizes], onnx.ModelProto],
) -> onnx.ModelProto:
    """What ``build`` makes, where that is the same whatever numbers stand for sizes of a run.

    Args:
        build: makes a model and leaves none of the numbers in it.

    Raises:
        UnsupportedError: the model depends on such a number.
    """
    first = RunSizes(0)
    made = build(first)
    if not first.places:
        return made
    other = build(RunSizes(1))
    why = _difference(made, other)
    if why:
        raise UnsupportedError(
            "a size that depends on data is needed before the run",
            where=why,
            why="the step that was made holds a number in place of a size that only a run knows",
            hint="freeze what lies behind it (--freeze), export the model with fixed sizes, or "
            "have the loss compare an output of a fixed size (--prediction; --loss-output)",
        )
    _leave_open(made, other)
    return made


def _leave_open(made: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Say nothing of sizes that are not always the same."""
    told = {v.name: v for v in (*other.graph.value_info, *other.graph.output)}
    always = [value for value in made.graph.value_info if value == told.get(value.name)]
    del made.graph.value_info[:]
    made.graph.value_info.extend(always)
    for value in made.graph.output:
        others = told[value.name].type.tensor_type.shape.dim
        for dim, one in zip(value.type.tensor_type.shape.dim, others, strict=True):
            if dim != one:
                dim.ClearField("dim_value")


def _difference(one: onnx.ModelProto, two: onnx.ModelProto) -> str:
    """The first node in which two models differ, in itself or in a constant; "" where none does."""
    stored = [{t.name: t for t in each.graph.initializer} for each in (one, two)]
    for node, other in zip(one.graph.node, two.graph.node, strict=False):
        same = node == other and all(
            stored[0].get(name) == stored[1].get(name) for name in node.input
        )
        if not same:
            return f"node {node.name} ({node.op_type})"
    given = [{v.name: v for v in each.graph.input} for each in (one, two)]
    for name in sorted({*given[0], *given[1]}):
        if given[0].get(name) != given[1].get(name):
            return f"input {name}"
    return "" if len(one.graph.node) == len(two.graph.node) else "the whole step"
