"""What is left out of onnxruntime's optimiser changes nothing that it makes."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from onnxremat.errors import ModelError
from onnxremat.ort import idle_passes
from onnxremat.ort.session import DEFAULT, open_session, session_options
from tests.toolbox import parse

EXPORTED = sorted((Path(__file__).parents[1] / "grad").glob("exported*/*.onnx"))
BLOCKED = "ReorderOutput"  # numbered anew at every load
SMALL = "g (float[2] x) => (float[2] y) { y = Neg(x) }"


def _saved(model: onnx.ModelProto, path: Path) -> bytes:
    made = session_options(DEFAULT)
    made.intra_op_num_threads = 1
    made.optimized_model_filepath = str(path)
    open_session(model, made)
    return path.read_bytes()


def test_what_onnxruntime_makes_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared: set[str] = set()
    compared = 0
    for file in EXPORTED[::3]:
        model = onnx.load(file)
        monkeypatch.setattr(idle_passes, "MANY", len(model.graph.node) + 1)
        assert not idle_passes.idle_passes(model)
        try:
            made = _saved(model, tmp_path / "made.onnx")
        except ModelError:  # it has dimensions that have to be bound first
            continue
        monkeypatch.setattr(idle_passes, "MANY", 0)
        spared.update(idle_passes.idle_passes(model))
        if BLOCKED.encode() not in made:
            compared += 1
            assert _saved(model, tmp_path / "made.onnx") == made, file.name
    assert compared > 10
    assert len(spared) > 30


def test_this_onnxruntime_has_them(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores names that it does not know; those it knows it tells of."""

    def told() -> set[str]:
        made = session_options(DEFAULT)
        made.log_severity_level = 1
        open_session(parse(SMALL), made)
        return set(re.findall(r"GraphTransformer (\w+) modified", capfd.readouterr().err))

    there = told()
    monkeypatch.setattr(idle_passes, "MANY", 0)
    left = told()
    passes = {name for names in idle_passes._PASSES.values() for name in names}
    assert passes <= there
    assert left - {"EnsureUniqueDQForNodeUnit"} == there - passes  # that one is made twice


@pytest.mark.parametrize(
    ("op", "kept"),
    [
        ("Erf", "GeluFusionL2"), ("QLinearConv", "NhwcTransformer"), ("LogSoftmax", ""),
        ("Softmax", "BiasSoftmaxFusion"), ("ReduceMean", "LayerNormFusionL1"),
        ("Swish", "ReshapeFusion"), ("DequantizeLinear", "WhereDummyDq"),
    ],
)  # fmt: skip
def test_an_op_keeps_the_passes_that_look_for_it(
    op: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_passes, "MANY", 0)
    plain, model = parse(SMALL), parse(SMALL)
    del model.graph.node[:]
    body = onnx.helper.make_node("If", ["c"], ["y"], then_branch=parse(SMALL).graph)
    body.attribute[0].g.node[0].op_type = op
    model.graph.node.append(body)
    spared = set(idle_passes.idle_passes(plain)) - set(idle_passes.idle_passes(model))
    assert (kept in spared) if kept else not spared
