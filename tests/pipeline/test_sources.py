"""What a model may be given as."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_graphsurgeon as gs
import pytest

import models
import onnxremat
from onnxremat.errors import UsageError
from onnxremat.pipeline.batch_size import set_batch
from onnxremat.pipeline.prepare import Settings, prepare
from onnxremat.pipeline.source import read_source


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
