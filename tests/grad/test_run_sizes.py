"""Gradients where sizes depend on data: right for every choice of rows, for none of them too."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat.errors import TrainingWarning, UnsupportedError
from onnxremat.grad import differentiate, training_of
from tests.grad.routing import ALL, MIXED, NONE, ONE, WORKS, Work, model, session, values

STEP, DIRECTIONS = 1e-6, 3
TRAINED = ("x", "w", "b")


def step_of(made: onnx.ModelProto, **options: object) -> onnx.ModelProto:
    names = [name for name in TRAINED if any(name in node.input for node in made.graph.node)]
    return differentiate(
        made, loss_output="total", optimizer=None, trainable=names, **options
    )  # fmt: skip


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_gradients_are_those_of_differences(work: Work) -> None:
    made = model(work)
    step = step_of(made)
    about, ran, forward = training_of(step), session(step), session(made)
    names = [gradient for _, gradient in about.gradients]
    read = {each.name for each in ran.get_inputs()}
    for score in (MIXED, NONE, ALL, ONE):
        feeds = values(score)
        results = ran.run(names, {n: v for n, v in feeds.items() if n in read})
        random = np.random.default_rng(1)
        for (name, _), found in zip(about.gradients, results, strict=True):
            assert found.shape == feeds[name].shape
            assert np.isfinite(found).all()
            for _ in range(DIRECTIONS):
                along = random.standard_normal(found.shape)
                ahead, behind = (
                    forward.run(None, {**feeds, name: feeds[name] + sign * STEP * along})[0]
                    for sign in (1, -1)
                )
                want = (ahead - behind) / (2 * STEP)
                assert abs((found * along).sum() - want) <= 1e-6 * (1 + abs(want))


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_a_weight_that_meets_no_row_has_a_gradient_of_zeros(work: Work) -> None:
    step = step_of(model(work, T.FLOAT))
    ran, about = session(step), training_of(step)
    read = {each.name for each in ran.get_inputs()}
    feeds = {n: v for n, v in values(NONE, np.float32).items() if n in read}
    found = dict(zip(dict(about.gradients), ran.run([g for _, g in about.gradients], feeds),
                     strict=True))  # fmt: skip
    for name in ("w", "b"):
        assert not found.get(name, np.zeros(1)).any()


def test_nothing_in_the_step_says_how_many_rows_there_are() -> None:
    step = step_of(model(WORKS[1]))
    told = {v.name: v.type.tensor_type.shape.dim for v in step.graph.value_info}
    rows = next(node.output[0] for node in step.graph.node if node.op_type == "Gather")
    assert rows not in told
    for tensor in step.graph.initializer:
        if tensor.data_type in (T.INT64, T.INT32):
            array = numpy_helper.to_array(tensor)
            assert not ((np.abs(array) > 1 << 16) & (np.abs(array) < 1 << 40)).any()


def test_equal_masks_find_equally_many() -> None:
    """Two NonZeros of one mask, one of its cast: what they find may be added."""
    work = Work("two masks", [
        ("Greater", ["score", "zero"], "mask2", {}), ("Cast", ["mask2"], "whole", {"to": T.INT64}),
        ("NonZero", ["whole"], "found2", {}), ("Squeeze", ["found2", "axis0"], "index2", {}),
        ("Gather", ["x", "index2"], "r2", {}), ("Mul", ["r", "r2"], "q", {}),
    ])  # fmt: skip
    step = step_of(model(work))
    feeds = values(MIXED)
    found = session(step).run(["x.grad"], feeds)[0]
    stored = {t.name: numpy_helper.to_array(t) for t in model(work).graph.initializer}
    want = 2 * feeds["x"] * stored["weights"] * (MIXED > 0)[:, None]
    np.testing.assert_allclose(found, want, rtol=1e-12)


def test_a_size_that_is_needed_before_the_run_is_refused_with_a_reason() -> None:
    """One less than the number of rows is no multiple of it."""
    work = Work("all but the first", [
        ("Slice", ["r", "axis1", "end", "axis0"], "s", {}), ("Pad", ["s", "behind"], "q", {}),
    ])  # fmt: skip
    made = model(work)
    made.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, 1, 0]), "behind"))
    with pytest.raises(UnsupportedError, match="depends on data is needed before the run"):
        step_of(made)


def test_a_loop_over_what_was_found_has_as_many_turns_as_its_split_names() -> None:
    """As tracing leaves a loop over experts: a Split into parts of one each."""
    nodes = [
        ("Greater", ["score", "zero"], ["mask"], {}), ("NonZero", ["mask"], ["found"], {}),
        ("Transpose", ["found"], ["places"], {"perm": [1, 0]}),
        ("Split", ["places", "each"], ["p0", "p1"], {"axis": 0}),
        ("Reshape", ["p1", "one"], ["second"], {}), ("Gather", ["x", "second"], ["row"], {}),
        ("ReduceSum", ["row"], ["total"], {"keepdims": 0}),
    ]  # fmt: skip
    stored = {"zero": np.zeros(()), "each": np.array([1, 1]), "one": np.array([1])}
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node(op, read, out, **settings) for op, read, out, settings in nodes],
            "turns",
            [helper.make_tensor_value_info("score", T.DOUBLE, [4]),
             helper.make_tensor_value_info("x", T.DOUBLE, [4, 2])],
            [helper.make_tensor_value_info("total", T.DOUBLE, [])],
            [numpy_helper.from_array(value, name) for name, value in stored.items()],
        ),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8,
    )  # fmt: skip
    with pytest.warns(TrainingWarning, match=r"has to find 2 in \w+ \(NonZero\)"):
        step = differentiate(made, loss_output="total", optimizer=None, trainable=["x"])
    feeds = {"score": np.array([-1.0, 1, -1, 1]), "x": np.ones((4, 2))}
    found = session(step).run(["x.grad"], feeds)[0]
    assert found.tolist() == [[0, 0], [0, 0], [0, 0], [1, 1]]


def test_boxes_are_as_many_as_a_run_selects_though_each_is_taken_apart() -> None:
    """A Split of the three numbers that NonMaxSuppression has for a box says nothing of how many
    boxes there are."""
    boxes = np.array([[[0, 0, 1, 1], [0, 5, 1, 6], [0, 9, 1, 10], [5, 5, 6, 6]]], np.float32)
    stored = {
        "boxes": boxes, "most": np.array([9]), "each": np.array([1, 1, 1]), "flat": np.array([-1]),
        "overlap": np.array([0.5], np.float32), "least": np.array([0.0], np.float32),
        "rows": np.array([0]),
    }  # fmt: skip
    nodes = [
        ("NonMaxSuppression", ["boxes", "score", "most", "overlap", "least"], ["found"], {}),
        ("Split", ["found", "each"], ["p0", "p1", "p2"], {"axis": 1}),
        ("Reshape", ["p2", "flat"], ["index"], {}), ("Gather", ["x", "index"], ["r"], {}),
        ("ReduceMean", ["r", "rows"], ["m"], {"keepdims": 0}),
        ("ReduceSum", ["m"], ["total"], {"keepdims": 0}),
    ]  # fmt: skip
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node(op, read, out, **settings) for op, read, out, settings in nodes],
            "boxes",
            [helper.make_tensor_value_info("score", T.FLOAT, [1, 1, 4]),
             helper.make_tensor_value_info("x", T.FLOAT, [4, 2])],
            [helper.make_tensor_value_info("total", T.FLOAT, [])],
            [numpy_helper.from_array(value, name) for name, value in stored.items()],
        ),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = differentiate(made, loss_output="total", optimizer=None, trainable=["x"])
    ran = session(step)
    for score in ([1, 1, 1, 1], [1, -1, -1, 1]):
        feeds = {"score": np.array([[score]], np.float32), "x": np.ones((4, 2), np.float32)}
        found = ran.run(["x.grad"], feeds)[0]
        chosen = np.array(score) > 0
        np.testing.assert_allclose(found[:, 0], chosen / chosen.sum(), rtol=1e-6)


def test_sizes_that_nothing_says_are_equal_are_refused_with_a_reason() -> None:
    """Rows above 0 and rows above 1: equally many by chance alone."""
    work = Work("two choices", [
        ("Greater", ["score", "b0"], "mask2", {}), ("NonZero", ["mask2"], "found2", {}),
        ("Squeeze", ["found2", "axis0"], "index2", {}), ("Gather", ["x", "index2"], "r2", {}),
        ("Mul", ["r", "r2"], "q", {}),
    ])  # fmt: skip
    made = model(work)
    made.graph.initializer.append(numpy_helper.from_array(np.array(1.0), "b0"))
    with pytest.raises(UnsupportedError, match="do not fit each other"):
        step_of(made)


def test_a_forward_pass_that_routes_rows_does_not_go_in_parts() -> None:
    with pytest.raises(UnsupportedError, match="does not go in parts"):
        differentiate(
            model(WORKS[1], T.FLOAT), loss_output="total", optimizer="sgd", trainable=["x", "w"],
            parting=lambda *_: pytest.fail("it was split"),
        )  # fmt: skip
