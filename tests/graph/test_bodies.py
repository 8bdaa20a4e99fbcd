"""Weights of bodies become weights of the model: held once, counted, and the results the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat import PlanOptions, Settings, optimize, verify
from onnxremat.graph.bodies import LEAST, brought_out
from onnxremat.graph.ir import subgraphs
from onnxremat.ort import offline
from onnxremat.ort.session import DEFAULT, open_session, session_options
from onnxremat.ort.weights import held_by
from tests.limits import LONG

WIDTH = 256
BYTES = 4 * WIDTH * WIDTH


def _weight(name: str, seed: int) -> onnx.TensorProto:
    draw = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH), np.float32)
    return numpy_helper.from_array(draw / np.float32(WIDTH**0.5), name)


def _value(name: str, kind: int = T.FLOAT, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _branch(constant: bool, seed: int) -> onnx.GraphProto:
    """Both branches call their weight the same."""
    weights = [] if constant else [_weight("w", seed)]
    made = [helper.make_node("Constant", [], ["w"], value=_weight("", seed))] if constant else []
    node = helper.make_node("MatMul", ["s", "w"], ["r"])
    return helper.make_graph([*made, node], "b", [], [_value("r", T.FLOAT, 8, WIDTH)], weights)


def _model() -> onnx.ModelProto:
    """A Loop whose body holds a weight and an If, whose branches hold two more."""
    branches = {"then_branch": _branch(True, 1), "else_branch": _branch(False, 2)}
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["old", "v"], ["s"]),
            helper.make_node("Equal", ["i", "one"], ["odd"]),
            helper.make_node("If", ["odd"], ["t"], **branches),
            helper.make_node("Add", ["t", "kept"], ["new"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [_value("i", T.INT64), _value("go", T.BOOL), _value("old", T.FLOAT, 8, WIDTH)],
        [_value("on", T.BOOL), _value("new", T.FLOAT, 8, WIDTH)],
        [_weight("v", 3), numpy_helper.from_array(np.ones(WIDTH, np.float32), "kept")],
    )
    nodes = [
        helper.make_node("Loop", ["trips", "", "x"], ["l"], body=body),
        helper.make_node("Sin", ["l"], ["y"]),
    ]
    counts = [
        numpy_helper.from_array(np.array(k, np.int64), n) for n, k in (("trips", 3), ("one", 1))
    ]
    ends = [[_value(name, T.FLOAT, 8, WIDTH)] for name in "xy"]
    graph = helper.make_graph(nodes, "g", *ends, counts)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _ran(model: onnx.ModelProto) -> np.ndarray:
    session = open_session(model, session_options(DEFAULT))
    x = np.random.default_rng(9).standard_normal((8, WIDTH), np.float32)
    return session.run(None, {"x": x})[0]


def test_they_are_weights_of_the_model_and_the_results_the_same() -> None:
    model = _model()
    made, folder = brought_out(model, Path())
    assert folder == Path()
    onnx.checker.check_model(made)
    # A kernel that packs its weight adds up in another order.
    np.testing.assert_allclose(_ran(made), _ran(model), rtol=1e-3, atol=2e-5)
    big = [t for t in made.graph.initializer if t.ByteSize() > BYTES]
    assert len(big) == len({t.name for t in big}) == 3
    assert sum(body.ByteSize() for node in made.graph.node for body in subgraphs(node)) < BYTES / 32
    assert brought_out(made, folder) == (made, folder)


def test_a_budget_counts_them_once(tmp_path: Path, warm: None) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(_model(), source)
    settings = Settings(threads=1, split_batch=(), fission=())
    options = PlanOptions(time_limit=LONG)
    made = optimize(source, budget="min", settings=settings, options=options, bench_seconds=0)
    made.save(out)
    facts = made.facts()
    assert 3 * BYTES <= facts["weight_bytes"] < 3.1 * BYTES
    found = verify(source, out, settings=Settings(threads=1), seeds=1)
    assert found.ok, found.checks


def test_weights_that_onnxruntime_folds_into_a_body_lie_outside() -> None:
    """Of a weight that it reads from around it, a body makes another shape (the cells of a scripted
    decoder): folded, it was in the body, held three times and counted not at all, 113 MiB where 37
    were promised."""
    body = helper.make_graph(
        [
            helper.make_node("Unsqueeze", ["w", "axis"], ["wide"]),
            helper.make_node("MatMul", ["old", "wide"], ["new"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [_value("i", T.INT64), _value("go", T.BOOL), _value("old", T.FLOAT, 1, 8, WIDTH)],
        [_value("on", T.BOOL), _value("new", T.FLOAT, 1, 8, WIDTH)],
    )
    stored = [
        _weight("w", 1),
        numpy_helper.from_array(np.array([0]), "axis"),
        numpy_helper.from_array(np.array(3), "trips"),
    ]
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)],
        "g",
        [_value("x", T.FLOAT, 1, 8, WIDTH)],
        [_value("y", T.FLOAT, 1, 8, WIDTH)],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with offline._saved(model, "all", None) as path:
        assert offline.weights_held(onnx.load(str(path))) >= 2 * BYTES
    made = offline.optimised_for(model, "host", None)
    assert BYTES <= held_by(made.graph) < 2 * BYTES
    assert not any(t.ByteSize() > LEAST for op in made.graph.ops for t in _held(op.node))


def _held(node: onnx.NodeProto) -> list[onnx.TensorProto]:
    return [tensor for body in subgraphs(node) for tensor in body.initializer]
