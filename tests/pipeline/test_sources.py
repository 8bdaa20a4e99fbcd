"""What a model may be given as."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_graphsurgeon as gs
import pytest

import models
import onnxremat
from onnxremat.errors import UnsupportedError, UsageError
from onnxremat.pipeline.batch_size import set_batch
from onnxremat.pipeline.original.source import read_source
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.settings import Settings
from tests.toolbox import parse


def test_graphsurgeon_graph_is_the_same_model() -> None:
    model = models.build("mlp", batch=4, width=16, layers=3)
    found = prepare(gs.import_onnx(model), Settings(measure=False))
    wanted = prepare(model, Settings(measure=False))
    assert [op.op_type for op in found.graph.ops] == [op.op_type for op in wanted.graph.ops]
    assert found.store_all_peak == wanted.store_all_peak


def test_nothing_that_is_made_of_a_model_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(models.build("mlp", batch=2), path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="the output is the input"):
        onnxremat.differentiate(path, path)
    with pytest.raises(UsageError, match="the output is a file of the input"):
        set_batch(path, path, 4)
    made = onnxremat.optimize(path, budget="1x", settings=Settings(measure=False))
    with pytest.raises(UsageError, match="the output is a file of the input"):
        made.save(path)
    assert path.read_bytes() == before


def test_anything_else_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot read a model from a dict"):
        read_source({})  # type: ignore[arg-type]


@pytest.mark.parametrize("old", [1, 2])
@pytest.mark.parametrize("body", ["m = ReduceMean<axes=[0]>(x)", "m = CumSum(x, zero)"])
def test_rows_that_see_others_have_no_other_batch_size(tmp_path: Path, old: int, body: str) -> None:
    """Of one row, repeated, the mean of a batch is what it was."""
    made = f"g (float[{old}, 3] x) => (float[{old}, 3] y) <int64 zero = {{0}}> {{"
    onnx.save(parse(f"{made} {body} y = Sub(x, m) }}", opset=17), tmp_path / "net.onnx")
    said = (
        "'y' is another one with batch size 6" if old == 1 else "rows of the batch depend on each"
    )
    with pytest.raises(UnsupportedError, match=said):
        set_batch(tmp_path / "net.onnx", tmp_path / "out.onnx", 6)
    assert not (tmp_path / "out.onnx").exists()
    onnx.save(parse(f"{made} m = Sin(x) y = Sub(x, m) }}"), tmp_path / "net.onnx")
    set_batch(tmp_path / "net.onnx", tmp_path / "out.onnx", 5)


def test_a_batch_size_that_a_model_had_before(tmp_path: Path) -> None:
    made = "g (float[2, 3, 4] x) => (float[2, 12] y) <int64[2] s = {2, 12}> { y = Reshape(x, s) }"
    file = tmp_path / "net.onnx"
    onnx.save(parse(made), file)
    for batch in (8, 4, 8):
        set_batch(file, tmp_path / f"{batch}.onnx", batch)
        file = tmp_path / f"{batch}.onnx"
    names = [tensor.name for tensor in onnx.load(file).graph.initializer]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("version", "listed"), [(3, True), (8, True), (8, False)])
def test_inputs_that_need_not_be_given_are_named(version: int, listed: bool) -> None:
    model = parse("g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }")
    model.ir_version = version
    if listed:
        model.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [4]))
    notes = prepare(model, Settings(measure=False)).notes
    said = any("are constants in a planned one: w;" in note for note in notes)
    assert said == (listed and version > 3)
