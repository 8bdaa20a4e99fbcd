"""What onnxremat reads into a file is compared with the file itself."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

import onnxremat
from onnxremat import Training, api
from onnxremat.errors import VerificationError
from onnxremat.ort import functions, infer
from onnxremat.pipeline import prepare, result, session_run
from onnxremat.pipeline.original import reference
from onnxremat.pipeline.planned import read_written
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.session.compare import Difference
from tests.toolbox import parse

QUICK = PlanOptions(time_limit=0.5)
TEXT = """<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
    g (float[4, 8] x) => (float[4, 8] y) { a = MatMul(x, w) y = my.F(a) }
    <domain: "my", opset_import: ["" : 21]> F (a) => (b) { c = Sin(a) b = Cos(c) }"""


def model() -> onnx.ModelProto:
    """A model that calls a function."""
    made = onnx.parser.parse_model(TEXT)
    weight = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return made


def misread(source: onnx.ModelProto) -> onnx.ModelProto:
    """Its function taken for another one."""
    made = functions.inline_functions(source)
    for node in made.graph.node:
        node.op_type = {"Sin": "Tanh"}.get(node.op_type, node.op_type)
    return made


def optimise(source: Any, out: Path, **more: Any) -> None:
    result = onnxremat.optimize(source, budget="1x", options=QUICK, settings=Settings(**more))
    result.save(out)


@pytest.mark.parametrize("train", [None, Training(loss="mse")], ids=["inference", "training"])
def test_a_function_that_is_misread_is_refused(
    train: Training | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(model(), path)
    optimise(path, tmp_path / "right.onnx", train=train)
    monkeypatch.setattr(prepare, "inline_functions", misread)
    with pytest.raises(VerificationError, match="otherwise than onnxruntime reads them"):
        optimise(path, tmp_path / "wrong.onnx", train=train)
    with pytest.raises(VerificationError, match="otherwise than onnxruntime reads them"):
        optimise(model(), tmp_path / "wrong.onnx", train=train)


def test_verify_sees_what_was_misread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it reads the original in the same way itself."""
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model(), path)
    optimise(misread(model()), out)
    monkeypatch.setattr(reference, "inline_functions", misread)
    found = onnxremat.verify(path, out)
    assert not found.ok
    assert next(check for check in found.checks if not check.ok).text.startswith("output 'y'")


def test_a_file_that_onnxruntime_does_not_open_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    made = model()
    made.graph.node[0].name = made.graph.node[1].name = "twice"
    onnx.save(made, path)
    optimise(path, out)
    found = onnxremat.verify(path, out)
    assert found.ok
    assert "does not open the original as it came" in found.checks[0].text


def test_a_size_that_is_not_that_of_the_run_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where onnxruntime infers another shape than it computes, and nobody has noticed yet: what a
    training step makes of it would be of other sizes."""
    made = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[1, 2, 8, 7] x) => (float[a, b, c, d] y) { r = Relu(x)
          y = MaxPool <ceil_mode = 1, kernel_shape = [1, 2], strides = [3, 3]> (r) }""")
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(made, path)
    optimise(path, out)
    assert onnxremat.verify(path, out).ok
    monkeypatch.setattr(infer, "as_computed", lambda model, found, ask: found)
    with pytest.raises(VerificationError, match=r"'y' of MaxPool is \[1, 2, 3, 3\], not"):
        optimise(path, out)


@pytest.mark.parametrize(
    "body",
    [
        "=> (float[4, 8] y) { q = Sin(z) y = my.F(x) }",
        "=> (seq(float[4, 8]) y) { a = my.F(x) y = SequenceConstruct(a, x) }",
        "=> (float[4, 8] y) { a = my.F(x) r = RandomNormalLike(a) y = Add(r, a) }",
    ],
    ids=["an input that nothing reads", "sequences", "random numbers"],
)
def test_functions_that_are_read_right_are_no_difference(body: str, tmp_path: Path) -> None:
    head, _, function = TEXT.partition("g (float[4, 8] x)")
    text = f"{head} g (float[4, 8] x, float[2] z) {body} {function[function.index('<domain') :]}"
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    optimise(path, out)
    assert onnxremat.verify(path, out).ok


@pytest.mark.parametrize(("worst", "by"), [(0.1, "by 0.1 of"), (math.inf, "infinite or no number")])
def test_outputs_that_are_not_the_original_s_are_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worst: float, by: str
) -> None:
    """Of what is fused otherwise, say; a file that says so is read again."""
    other = Difference(False, worst, "y", 1e-3, False)
    monkeypatch.setattr(result, "compare", lambda *given: other)
    model = parse("g (float[4, 64] x) => (float[4, 64] y) { a = Sin(x) b = Cos(a) y = Exp(b) }")
    settings = Settings(threads=1, target="portable")
    made = api.optimize(model, budget="1x", settings=settings, bench_seconds=0)
    assert any(by in note for note in made.facts()["notes"])
    assert "NOT the original's" in made.report()
    made.save(tmp_path / "out.onnx")
    written = read_written(tmp_path / "out.onnx")
    assert written.facts["same_as_original"] is False
    assert "Infinity" not in (tmp_path / "out.onnx.options.json").read_text()


def test_what_onnxruntime_adds_to_an_order_is_named() -> None:
    """Half precision as it is given, on the processor: casts around every op."""
    run = {"profile": SimpleNamespace(kernels=[]), "missing": (), "merged": (), "extra": ("cast",)}
    differs = session_run.order_of("order", cast(Any, SimpleNamespace(order_kept=False, **run)))
    assert not differs.ok
    assert "adds 1 ops as it opens the model, casts of half precision" in differs.text
    kept = session_run.order_of("order", cast(Any, SimpleNamespace(order_kept=True, **run)))
    assert (kept.ok, kept.text) == (True, "0 kernels as planned")
