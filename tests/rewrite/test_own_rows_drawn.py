"""What is said of rows against runs: where an entry of a value is said to be of one row, no other
row, however large its numbers become, changes it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from random import Random

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.errors import ModelError
from onnxremat.graph.axes import BLOCKED, ML, TABLE
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.original.sizes import with_measured_shapes
from onnxremat.rewrite.own_rows import follow
from onnxremat.rewrite.told import ANY, Rows, Told
from tests.fuzz_nodes.case import CHAINS, KINDS, Case, case
from tests.grad.judge import NotJudgedError, opened_session
from tests.graph.axis_cases import CASES, feeds_of
from tests.graph.axis_cases import Case as AxisCase
from tests.toolbox import seeds

Values = dict[str, np.ndarray]
EXTREMES = (1e4, -1e4, 1e3, -0.5, 7.0, -300.0)


def own_of(graph: Graph, given: Mapping[str, Rows]) -> dict[str, Rows]:
    """The values that are said to have rows of their own, beside those that are given."""
    told = Told(graph, dict(given))
    follow(told)
    return {name: rows for name, rows in told.own.items() if name not in given}


def contradicted(graph: Graph, feeds: Values, given: Mapping[str, Rows], draw: Random) -> int:
    """How many values are said to have rows of their own; fails where a run shows another one."""
    own = own_of(graph, given)
    arrays = [name for name in own if graph.tensors[name].dtype]
    if not arrays:
        return 0
    model = to_model(graph)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in arrays)
    session = opened_session(model)
    read = {value.name for value in session.get_inputs()}
    ran = {name: value for name, value in feeds.items() if name in read}
    try:
        before = dict(zip(arrays, session.run(arrays, ran), strict=True))
    except Exception as error:
        raise NotJudgedError("onnxruntime does not run it") from error
    for row in sorted({row for rows in given.values() for row in rows.rows}):
        changed = {
            name: _with_row(value, given[name], row, draw) if name in given else value
            for name, value in ran.items()
        }
        try:
            after = dict(zip(arrays, session.run(arrays, changed), strict=True))
        except Exception:
            continue
        for name in arrays:
            kept = _beside(before[name], own[name], row), _beside(after[name], own[name], row)
            assert _same(*kept), (
                f"{graph.ops[graph.producer[name]].op_type} '{name}' is said to have {own[name]}, "
                f"and row {row} changes others"
            )
    return len(arrays)


def _with_row(value: np.ndarray, rows: Rows, row: int, draw: Random) -> np.ndarray:
    """With other numbers in one row: extremes, or some that are there."""
    made = value.copy()
    for entry in (entry for entry, of in enumerate(rows.rows) if of == row):
        at = (slice(None),) * rows.axis + (entry,)
        old = made[at]
        found = EXTREMES if value.dtype.kind == "f" else value.ravel().tolist()
        new = np.array([draw.choice(found) for _ in range(old.size)])
        made[at] = new.astype(value.dtype).reshape(old.shape)
    return made


def _beside(value: np.ndarray, rows: Rows, row: int) -> np.ndarray:
    """The entries that another row does not change."""
    if rows.axis == ANY:
        return value[:0] if rows.rows == (row,) else value
    assert value.shape[rows.axis] == len(rows.rows)
    return value.take([entry for entry, of in enumerate(rows.rows) if of != row], rows.axis)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """But for the last bit: sines of doubles are computed in another way beside large numbers."""
    if one.dtype.kind != "f":
        return bool((one == other).all())
    return np.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True)


def places(case: Case, draw: Random) -> dict[str, Rows]:
    """Rows along an axis of an input, and perhaps along axes of others that are as long."""
    graph = case.model.graph
    shapes = {v.name: x.shape for v, x in zip(graph.input, case.feeds, strict=True)}
    axes = [(name, axis) for name, shape in shapes.items()
            for axis, size in enumerate(shape) if size > 1]  # fmt: skip
    if not axes:
        return {}
    name, axis = draw.choice(axes)
    size = shapes[name][axis]
    found = {name: Rows(axis, tuple(range(size)))}
    for other, along in axes:
        if other not in found and shapes[other][along] == size and draw.random() < 0.5:
            found[other] = Rows(along, tuple(range(size)))
    return found


def judged(seed: int, number: int, kind: str = "") -> int:
    """How many values of a drawn case are said to have rows of their own."""
    made, draw, found = case(seed, number, kind), Random(f"{seed} {number}"), 0
    if made is None:
        return 0
    try:
        graph = build_graph(made.model)
    except ModelError:  # of no kernel
        return 0
    feeds = dict(zip([v.name for v in made.model.graph.input], made.feeds, strict=True))
    for _ in range(4):
        given = places(made, draw)
        try:
            found += contradicted(graph, feeds, given, draw) if given else 0
        except NotJudgedError:
            return 0
    return found


@cache
def _ruled() -> frozenset[str]:
    """Operators with a rule, by the names that cases have."""
    keys = (key for key in TABLE if key[0] not in (BLOCKED, ML))
    return frozenset(f"{domain}.{op}".removeprefix(".") for domain, op in keys)


@pytest.mark.parametrize("seed", seeds(12, 1))
def test_no_run_of_one_operator_contradicts(seed: int) -> None:
    """Each operator with a rule, or that is a recurrence: rows along all axes."""
    silent = [kind for kind in KINDS if kind in _ruled() | {"GRU", "LSTM", "RNN"}
              and not sum([judged(seed, number, kind) for number in range(6)])]  # fmt: skip
    assert len(silent) < 25, silent


@pytest.mark.parametrize("seed", seeds(40, 4))
def test_no_run_of_a_few_operators_contradicts(seed: int) -> None:
    assert sum([judged(seed, number, CHAINS) for number in range(5)]) > 0


SAMPLES = [case for case in CASES if case.domain == ML]


@pytest.mark.parametrize("each", SAMPLES, ids=lambda each: each.kind)
def test_no_run_of_a_classical_model_contradicts(each: AxisCase) -> None:
    """Also where onnxruntime infers no sizes."""
    graph = build_graph(each.model())
    feeds = feeds_of(graph)
    graph = with_measured_shapes(graph, to_model(graph), feeds, None)
    rows = tuple(range(feeds["i0"].shape[0]))
    assert contradicted(graph, feeds, {"i0": Rows(0, rows)}, Random(0)) == each.outputs


# Graphs of operators that mix rows and that do not, one behind the other


class _Drawn:
    """A graph as it grows: values with their shapes."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.shapes: dict[str, tuple[int, ...]] = {"x": (4, 6), "z": (4, 2, 3), "w": (4, 4)}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs = dict(self.shapes)

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(
        self, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes: object
    ) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"n_{name}", **attributes))
        self.shapes[name] = shape
        return name

    def step(self) -> None:
        """One more op."""
        name = self.draw.choice(list(self.shapes)[-6:])
        shape, ways = self.shapes[name], [self.plain, self.turn, self.view, self.join, self.meet]
        if len(shape) > 0 and min(shape) > 0:
            ways += [self.over, self.less, self.cut, self.look, self.widen, self.times, self.gate]
        self.draw.choice(ways)(name, shape)

    def plain(self, name: str, shape: tuple[int, ...]) -> None:
        self.add(self.draw.choice(["Sin", "Relu", "Neg", "Identity"]), [name], shape)

    def turn(self, name: str, shape: tuple[int, ...]) -> None:
        order = self.draw.sample(range(len(shape)), len(shape))
        if not order:
            return
        self.add("Transpose", [name], tuple(shape[i] for i in order), perm=order)

    def view(self, name: str, shape: tuple[int, ...]) -> None:
        left, made = int(np.prod(shape, dtype=int)), list[int]()
        while left > 1 and len(made) < 3:
            made.append(self.draw.choice([d for d in range(1, left + 1) if left % d == 0]))
            left //= made[-1]
        made.insert(self.draw.randint(0, len(made)), left)
        self.add("Reshape", [name, self.constant(made)], tuple(made))

    def join(self, name: str, shape: tuple[int, ...]) -> None:
        like = [other for other, each in self.shapes.items() if each == shape]
        if shape:
            axis = self.draw.randrange(len(shape))
            many = [name, *self.draw.choices(like, k=self.draw.randint(1, 2))]
            grown = tuple(s * len(many) if i == axis else s for i, s in enumerate(shape))
            self.add("Concat", many, grown, axis=axis)

    def other(self, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
        """Another value and the shape of both together, None where they do not go together."""
        other = self.draw.choice(list(self.shapes))
        try:
            return other, np.broadcast_shapes(shape, self.shapes[other])
        except ValueError:
            return None

    def meet(self, name: str, shape: tuple[int, ...]) -> None:
        if found := self.other(shape):
            other, made = found
            self.add(self.draw.choice(["Add", "Sub", "Max", "Min"]), [name, other], made)

    def over(self, name: str, shape: tuple[int, ...]) -> None:
        axis, kind = self.draw.randrange(len(shape)), self.draw.choice(["Softmax", "CumSum"])
        if kind == "CumSum":
            self.add(kind, [name, self.constant(axis)], shape)
        else:
            self.add(kind, [name], shape, axis=axis)

    def less(self, name: str, shape: tuple[int, ...]) -> None:
        axis, keep = self.draw.randrange(len(shape)), self.draw.random() < 0.6
        made = tuple(1 if i == axis else s for i, s in enumerate(shape) if i != axis or keep)
        kind = self.draw.choice(["ReduceMax", "ReduceSum", "ReduceMin"])
        self.add(kind, [name, self.constant([axis])], made, keepdims=int(keep))

    def cut(self, name: str, shape: tuple[int, ...]) -> None:
        axis = self.draw.randrange(len(shape))
        first = self.draw.randrange(shape[axis])
        end, by = self.draw.randint(first + 1, shape[axis]), self.draw.choice([1, 1, 2])
        made = list(shape)
        made[axis] = -(-(end - first) // by)
        given = [self.constant([value]) for value in (first, end, axis, by)]
        self.add("Slice", [name, *given], tuple(made))

    def look(self, name: str, shape: tuple[int, ...]) -> None:
        axis = self.draw.randrange(len(shape))
        places = [self.draw.randrange(shape[axis]) for _ in range(self.draw.randint(1, 4))]
        made = (*shape[:axis], len(places), *shape[axis + 1 :])
        self.add("Gather", [name, self.constant(places)], made, axis=axis)

    def widen(self, name: str, shape: tuple[int, ...]) -> None:
        made = tuple(4 if size == 1 and self.draw.random() < 0.7 else size for size in shape)
        made = (2, *made) if self.draw.random() < 0.3 else made
        self.add("Expand", [name, self.constant(made)], made)

    def times(self, name: str, shape: tuple[int, ...]) -> None:
        factors = [(other, each) for other, each in self.shapes.items() if len(each) in (1, 2)]
        fits = [other for other, each in factors if each[0] == shape[-1] and len(shape) > 1]
        if fits:
            other = self.draw.choice(fits)
            self.add("MatMul", [name, other], (*shape[:-1], *self.shapes[other][1:]))

    def gate(self, name: str, shape: tuple[int, ...]) -> None:
        """Kept where some value is small, which small numbers are."""
        found = self.other(shape)
        if found is None:
            return
        other, made = found
        self.add("Greater", [other, self.constant(100.0, np.float32)], self.shapes[other])
        large = f"v{len(self.nodes) - 1}"
        del self.shapes[large]
        self.add("Where", [large, self.constant(0.0, np.float32), name], made)

    def graph(self) -> Graph:
        ends = [helper.make_tensor_value_info(n, 1, s) for n, s in self.inputs.items()]
        last = [onnx.ValueInfoProto(name=f"v{len(self.nodes) - 1}")]
        made = helper.make_graph(self.nodes, "drawn", ends, last, self.constants)
        opsets = [helper.make_opsetid("", 18)]
        return build_graph(helper.make_model(made, opset_imports=opsets, ir_version=9))


def _grown(seed: int) -> tuple[Graph, Values]:
    drawn = _Drawn(seed)
    while len(drawn.nodes) < 14:
        drawn.step()
        if any(np.prod(shape, dtype=int) > 4000 for shape in drawn.shapes.values()):
            drawn = _Drawn(drawn.draw.randrange(1 << 30))
    numbers = np.random.default_rng(seed)
    feeds = {name: numbers.uniform(0.1, 0.9, shape).astype(np.float32)
             for name, shape in drawn.inputs.items()}  # fmt: skip
    return drawn.graph(), feeds


@pytest.mark.parametrize("first", seeds(60, 3))
def test_no_run_of_a_grown_graph_contradicts(first: int) -> None:
    many = 0
    for seed in range(50 * first, 50 * first + 50):
        graph, feeds = _grown(seed)
        given = {name: Rows(0, (0, 1, 2, 3)) for name in graph.inputs}
        many += contradicted(graph, feeds, given, Random(seed))
    assert many > 100
