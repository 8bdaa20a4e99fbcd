"""Weights that half precision holds without loss lie so where a budget asks for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import InfeasibleError
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.prepare import prepare
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite import held_narrow
from onnxremat.rewrite.held_narrow import narrow_weights
from tests.toolbox import parse

SIDE, LAYERS, ROWS = 384, 4, 8
SHORT = PlanOptions(work=500, threads=1)
ALL = 4 * SIDE * SIDE * LAYERS


def chain(kind: int, rows: int = ROWS, layers: int = LAYERS) -> onnx.ModelProto:
    """Products with weights of the type ``kind`` that are cast before them."""
    text = " ".join(
        f"c{k} = Cast<to = 1>(w{k}) m{k} = MatMul(h{k}, c{k}) h{k + 1} = Tanh(m{k})"
        for k in range(layers)
    )
    model = parse(
        f"g (float[{rows},1,{SIDE}] h0) => (float[{rows},1,1] y) "
        f"{{ {text} y = ReduceMean<axes = [2]>(h{layers}) }}"
    )
    model.opset_import[0].version = 17
    drawn = np.random.default_rng(0)
    for k in range(layers):
        values = (drawn.standard_normal(SIDE * SIDE) * SIDE**-0.5).astype(np.float32)
        if kind == TensorProto.BFLOAT16:
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            tensor = helper.make_tensor(f"w{k}", kind, (SIDE, SIDE), bits.tobytes(), raw=True)
        else:
            half = values.reshape(SIDE, SIDE).astype(helper.tensor_dtype_to_np_dtype(kind))
            tensor = numpy_helper.from_array(half, f"w{k}")
        model.graph.initializer.append(tensor)
    return model


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("beside", [False, True], ids=["in the file", "beside it"])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_weights_take_half(
    tmp_path: Path, kind: int, beside: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_narrow, "ROWS", 100)  # of a transpose at once
    file, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(
        chain(kind, rows), file, save_as_external_data=beside, location="w.data", size_threshold=0
    )
    settings = api.Settings(threads=1)
    result = api.optimize(file, budget="min", settings=settings, options=SHORT)
    assert result.prepared.weights < 0.51 * ALL
    assert any("in half precision until read" in note for note in result.plan.provenance.notes)
    assert any("warns that 4 weights are among" in note for note in result.plan.provenance.notes)
    result.save(out)
    assert api.verify(file, out).ok
    again = prepare(onnx.load(out), api.Settings(measure=False))
    assert not any("inputs that have a value" in note for note in again.notes)
    assert api.apply(file, result.plan, settings=settings).plan.sequence == result.plan.sequence


def test_as_many_as_it_takes() -> None:
    """Those that stay wide are packed and read as before."""
    model, settings = chain(TensorProto.FLOAT16, layers=8), api.Settings(threads=1)
    counts = []
    for share in ("0.9x", "0.75x"):
        result = api.optimize(model, budget=share, settings=settings, options=SHORT)
        counts.append(sum(op.op_type == "Cast" for op in result.prepared.graph.ops))
    assert 0 < counts[0] < counts[1] < 8


def test_a_large_weight_that_is_wide_while_it_is_read() -> None:
    """Half of it besides is more than all of it, where nothing reads it in parts."""
    settings = api.Settings(threads=1, fission=(), split_batch=(), costs=analytic_costs)
    for layers, less in ((1, False), (8, True)):
        model = chain(TensorProto.FLOAT16, layers=layers)
        found, wide = (
            api.optimize(
                model, budget="min", settings=each, options=SHORT, bench_seconds=0
            ).candidate
            for each in (settings, replace(settings, narrow=()))
        )
        assert found.process < wide.process if less else found.process == wide.process
        floor = found.prepared.floor.total
        assert found.lower == floor if less else found.lower > floor
        notes = found.plan.provenance.notes
        assert any("can work with these weights in half precision" in n for n in notes) == less


def test_where_nothing_else_fits() -> None:
    """Weights and results fit, one product does not: parts may do, and so may narrow weights."""
    model = chain(TensorProto.FLOAT16, rows=1024)
    settings = api.Settings(threads=1, fission=(), split_batch=(), measure=False)
    wide = replace(settings, narrow=())
    least = api.optimize(model, budget="min", settings=wide, options=SHORT).candidate.process
    with pytest.raises(InfeasibleError, match="at least"):
        api.optimize(model, budget=least - 2**17, settings=wide, options=SHORT)
    for command in (api.optimize, api.plan):
        found = command(model, budget=least - 2**17, settings=settings, options=SHORT)
        assert found.plan.provenance.settings["narrow"]


def test_weights_that_nobody_reads(tmp_path: Path) -> None:
    model = chain(TensorProto.FLOAT, layers=1)
    drawn = np.random.default_rng(0).standard_normal(SIDE * SIDE).astype(np.float16)
    read = drawn.reshape(SIDE, SIDE).astype(np.float32)
    del model.graph.initializer[:]
    for name, values in (("w0", read), ("line", read.ravel()), ("block", read.reshape(4, 6, -1))):
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, tmp_path / "in.onnx")
    settings = api.Settings(threads=1, target="none", fission=(), split_batch=())
    result = api.optimize(model, budget="min", settings=settings, options=SHORT)
    assert "w0" in result.plan.provenance.settings["narrow"]
    result.save(tmp_path / "out.onnx")
    assert api.verify(tmp_path / "in.onnx", tmp_path / "out.onnx").ok


def test_float32_weights_stay() -> None:
    result = api.optimize(
        chain(TensorProto.DOUBLE), budget="min", settings=api.Settings(threads=1), options=SHORT
    )
    assert result.prepared.weights >= ALL


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5), st.booleans())
def test_no_bit_is_lost(drawn: list[int], small: bool) -> None:
    """Also of infinities, numbers that are none, and the smallest ones."""
    bits = np.array(drawn, np.uint32)
    values = (bits.astype(np.uint16).view(np.float16).astype(np.float32) if small
              else bits.view(np.float32))  # fmt: skip
    wide = np.resize(values, (256, 512))
    model = parse("g (float[1,256] x) => (float[1,512] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(wide, "w"))
    found = narrow_weights(build_graph(model), None)
    with np.errstate(over="ignore", invalid="ignore"):
        back = wide.astype(np.float16).astype(np.float32)
    half = np.array_equal(back.view(np.uint32), wide.view(np.uint32))
    brain = not (wide.view(np.uint32) & 0xFFFF).any()
    assert (found.get("w") == TensorProto.FLOAT16) == half
    assert (found.get("w") == TensorProto.BFLOAT16) == (brain and not half)
