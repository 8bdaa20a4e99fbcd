"""Gradients that add something at indices are right, and the same bits in every run, with any
number of threads. ``tests/grad/large.py`` has the nodes, and a table of all families of rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat.grad.lowering import row_sums
from onnxremat.grad.lowering.one_by_one import single_reductions
from onnxremat.grad.tape import Tape
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import named_outputs
from tests.grad.checking import Case, Fixed, build, gradients
from tests.grad.large import RACING, SCATTERS, THREADS, backward, different, error, results

RUNS = 10  # tests/grad/large.py has more
FORMULATIONS = (row_sums._elements, row_sums._one_hot, row_sums._blocks, row_sums._segments)


def taken(case: Case) -> np.ndarray | None:
    """Which element of x each element of y is, where the operator takes elements."""
    x, indices = (entry.value if isinstance(entry, Fixed) else entry for entry in case.inputs[:2])
    numbers, axis = np.arange(x.size).reshape(x.shape), case.attributes.get("axis", 0)
    if case.op == "Gather":
        return np.take(numbers, indices, axis, mode="wrap")
    if case.op == "GatherElements":
        return np.take_along_axis(numbers, indices, axis)
    if case.op == "GatherND" and not case.attributes.get("batch_dims"):
        return numbers[tuple(np.moveaxis(indices, -1, 0))]
    return None


def added_up(case: Case) -> dict[str, np.ndarray]:
    """The gradients in float64: by numpy.add.at, or else from the graph on one thread."""
    where = taken(case)
    if where is None:
        return results(*backward(case, np.float64), 1, 1)[0]
    model, values = build(case, case.opsets[0], np.dtype(np.float32))
    weights = next(t for t in model.graph.initializer if t.name == "r0")
    total = np.zeros(values["x0"].size)
    np.add.at(total, where.ravel(), numpy_helper.to_array(weights).ravel().astype(np.float64))
    return {"x0.grad": total.reshape(values["x0"].shape)}


@pytest.mark.parametrize("case", SCATTERS, ids=lambda case: case.label())
def test_same_bits_and_right_with_any_number_of_threads(case: Case) -> None:
    try:
        want, allowed = added_up(case), 1e-6
    except Exception:  # no float64 kernel: float32 on one thread, which sums in another order
        want, allowed = results(*backward(case, np.float32), 1, 1)[0], 2e-6
    model, values = backward(case, np.float32)
    for threads in THREADS:
        found = results(model, values, threads, RUNS if threads > 1 else 2)
        worst = max(error(one, want) for one in found)
        assert worst <= allowed, f"{threads} threads: off by {worst:.1e}"
        assert different(found) == 1, f"{threads} threads: {different(found)} different results"


@pytest.mark.parametrize("case", RACING, ids=lambda case: case.label())
def test_reductions_of_the_model_itself_have_the_same_bits(case: Case) -> None:
    """Loss and gradients; the kernel of the model's own op gave others in each run."""
    model, values = backward(case, np.float32)
    found = [one for threads in (1, 2) for one in results(model, values, threads, RUNS)]
    assert different(found) == 1


def test_known_indices_that_differ_are_reduced_as_they_were() -> None:
    """No thread meets another there, and the kernel is quicker."""
    zeros = numpy_helper.from_array(np.zeros((4, 2), np.float32), "zeros")
    for places, kept in (([[2], [0], [3]], True), ([[2], [0], [2]], False), ([[2], [-2]], False)):
        i = numpy_helper.from_array(np.array(places), "i")
        put = helper.make_node("ScatterND", ["zeros", "i", "u"], ["y"], "put", reduction="add")
        graph = helper.make_graph(
            [put], "g",
            [helper.make_tensor_value_info("u", T.FLOAT, (len(places), 2))],
            [helper.make_tensor_value_info("y", T.FLOAT, (4, 2))], [zeros, i],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        made = single_reductions(build_graph(model))
        assert ("ScatterND" in {op.op_type for op in made.ops}) is kept
        updates = np.arange(2.0 * len(places), dtype=np.float32).reshape(-1, 2)
        want = np.zeros((4, 2), np.float32)
        np.add.at(want, np.array(places).ravel(), updates)
        np.testing.assert_array_equal(
            named_outputs(to_model(made), {"u": updates}, None)["y"], want
        )


def test_no_reduction_races() -> None:
    """No step has a ScatterND that reduces, whose kernel adds from several threads at once: not
    that of the model either."""
    for case in (*SCATTERS, *RACING):
        model, _ = backward(case, np.float32)
        for node in model.graph.node:
            if node.op_type == "ScatterND":
                assert all(a.name != "reduction" or a.s == b"none" for a in node.attribute)


def run_sum(how: Any, rows: np.ndarray, indices: np.ndarray, length: int) -> np.ndarray:
    """Rows added up by a formulation, in onnxruntime."""
    kind = helper.np_dtype_to_tensor_dtype(rows.dtype)
    tape = Tape({}, 18, [])
    tape.declare("rows", kind, rows.shape)
    tape.declare("indices", T.INT32, indices.shape)
    made = how(tape, "rows", "indices", length)
    graph = helper.make_graph(
        [op.node for op in tape.ops], "sums",
        [helper.make_tensor_value_info("rows", kind, rows.shape),
         helper.make_tensor_value_info("indices", T.INT32, indices.shape)],
        [helper.make_tensor_value_info(made, kind, tape.shape(made))], tape.initializers,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model, full_check=indices.size < 1000)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"rows": rows, "indices": indices.astype(np.int32)})[0])


def check_sum(how: Any, rows: np.ndarray, indices: np.ndarray, length: int) -> None:
    want = np.zeros((length, rows.shape[1]))
    np.add.at(want, indices, rows.astype(np.float64))
    found = run_sum(how, rows, indices, length)
    assert found.shape == want.shape
    assert found.dtype == rows.dtype
    allowed = {"float16": 3e-3, "float32": 1e-6, "float64": 1e-14}[rows.dtype.name]
    assert np.linalg.norm(found - want) <= allowed * np.linalg.norm(want)


@pytest.mark.parametrize("how", [*FORMULATIONS, row_sums.sum_rows], ids=lambda f: f.__name__)
@settings(max_examples=10, deadline=None)
@given(
    count=st.one_of(st.integers(1, 9), st.integers(120, 330), st.integers(4000, 5300)),
    length=st.sampled_from([1, 2, 3, 40, 700]),
    width=st.sampled_from([1, 2, 7]),
    crowd=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
def test_every_formulation(
    how: Any, count: int, length: int, width: int, crowd: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, length, count)
    indices[rng.random(count) < crowd] = rng.integers(0, length)  # one index many times
    check_sum(how, rng.uniform(0.5, 1.5, (count, width)).astype(np.float32), indices, length)


@pytest.mark.parametrize("how", FORMULATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("count", [100, 600])
def test_other_types(how: Any, dtype: type[np.floating], count: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.5, 1.5, (count, 5)).astype(dtype)
    check_sum(how, rows, rng.integers(0, 90, count), 90)


@pytest.mark.parametrize("count", [1 << 13, 1 << 16])
def test_segments_of_many_rows(count: int) -> None:
    """Ends of blocks have blocks again, and these too."""
    rng = np.random.default_rng(0)
    indices = np.minimum(rng.geometric(1e-3, count), 4999)
    check_sum(
        row_sums._segments, rng.uniform(0.5, 1.5, (count, 2)).astype(np.float32), indices, 5000
    )


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_gather_of_any_axis_and_index(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    index_shape = data.draw(st.lists(st.integers(0, 5), max_size=2))
    known = data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    length = shape[axis]
    indices = rng.integers(-length, length, index_shape)
    x, weights = np.zeros(shape, np.float32), None
    weights = rng.uniform(0.5, 1.5, np.take(x, indices, axis, mode="wrap").shape)
    model = gather_model(shape, axis, indices, weights.astype(np.float32), known)
    made = gradients(model, ["x"], None, "Gather")
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": x} if known else {"x": x, "indices": indices}
    found = session.run(["x.grad"], feeds)[0]
    numbers = np.arange(x.size).reshape(shape)
    want = np.zeros(x.size)
    np.add.at(want, np.take(numbers, indices, axis, mode="wrap").ravel(), weights.ravel())
    np.testing.assert_allclose(found, want.reshape(shape), rtol=1e-6, atol=1e-6)


def gather_model(
    shape: list[int], axis: int, indices: np.ndarray, weights: np.ndarray, known: bool
) -> onnx.ModelProto:
    """The sum of what a Gather takes times weights."""
    given_indices = numpy_helper.from_array(indices, "indices")
    inputs = [helper.make_tensor_value_info("x", T.FLOAT, shape)]
    if not known:
        inputs.append(helper.make_tensor_value_info("indices", T.INT64, indices.shape))
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["x", "indices"], ["y"], axis=axis, name="node"),
            helper.make_node("Mul", ["y", "r"], ["p"]),
            helper.make_node("ReduceSum", ["p"], ["total"], keepdims=0),
        ],
        "gather", inputs, [helper.make_tensor_value_info("total", T.FLOAT, [])],
        [numpy_helper.from_array(weights, "r"), *([given_indices] if known else [])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
