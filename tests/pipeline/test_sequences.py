"""Models whose values are sequences of tensors: they run as they are, and their bytes count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onnxremat import api
from onnxremat.graph.onnx_io import read_model
from onnxremat.ort.profile import named_outputs
from onnxremat.pipeline.batch_size import set_batch
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.session.compare import compare
from tests.toolbox import parse


def test_sequences_are_kept_and_counted() -> None:
    """As exporters write a split of a tensor: its parts are copied into a sequence."""
    model = parse("""g (float[64, 32] x) => (float[64, 8] y)
        <int64 size = {16}, int64 half = {8}, int64 first = {0}, int64 second = {1},
         int64[1] axis = {0}> {
        a = Sin(x)
        parts = SplitToSequence<axis: int = 1>(a, size)
        p = SequenceAt(parts, first)
        q = SequenceAt(parts, second)
        m = Mul(p, q)
        halves = SplitToSequence<axis: int = 1, keepdims: int = 1>(m, half)
        one = SequenceAt(halves, first)
        two = SequenceAt(halves, second)
        both = SequenceConstruct(one, two)
        c = ConcatFromSequence<axis: int = 0, new_axis: int = 1>(both)
        y = ReduceMax<keepdims: int = 0>(c, axis)
    }""")
    settings, options = Settings(threads=1, fresh=True), PlanOptions(time_limit=2.0, threads=1)
    for split in ((), (4,)):
        found = api.optimize(
            model, budget="min", settings=replace(settings, split_batch=split), options=options,
            bench_seconds=0,
        ).facts()  # fmt: skip
        assert found["bit_equal"]
        assert found["difference_to_original"] == 0
        assert found["order_kept"]
        # But for what finds shapes as it runs, a few integers.
        assert abs(found["peak_predicted_bytes"] - found["peak_measured_bytes"]) < 64


def test_a_loop_of_a_sequence_and_a_number() -> None:
    """As EmbeddingBag is exported: profiles list only those of its results that are tensors."""
    model = parse("""g (float[64, 32] x, int64[3] ends) => (float[3, 32] y)
        <bool go = {1}, int64 zero = {0}, int64 unit = {1}, int64 three = {3},
         int64[1] first = {0}> {
        empty = SequenceEmpty()
        rows, last = Loop("", go, empty, zero) <body = bag
            (int64 k, bool c, seq(float[]) made, int64 i)
            => (bool more, seq(float[]) longer, int64 next) {
            end = Gather(ends, i)
            to = Unsqueeze(end, first)
            part = Slice(x, first, to, first)
            row = ReduceSum<keepdims: int = 1>(part, first)
            longer = SequenceInsert(made, row)
            next = Add(i, unit)
            more = Less(next, three)
        }>
        s = ConcatFromSequence<axis: int = 0>(rows)
        y = Sin(s)
    }""")  # fmt: skip
    found = api.optimize(
        model, budget="1x", settings=Settings(threads=1, target="none"),
        options=PlanOptions(time_limit=2.0, threads=1), bench_seconds=0,
    ).facts()  # fmt: skip
    assert found["bit_equal"]


@pytest.mark.parametrize(
    "body",
    [
        "=> (optional(float[4, 256]) y) { a = Sin(x) y = Optional(a) }",
        "=> (seq(float[4, 256]) y) { a = Sin(x) b = Cos(a) y = SequenceConstruct(a, b) }",
        "=> (string[4, 256] y) { a = Sin(x) b = Cos(a) c = Mul(a, b) y = Cast<to: int = 8>(c) }",
    ],
    ids=["optional", "sequence", "texts"],
)
def test_results_that_are_no_numbers(body: str, tmp_path: Path) -> None:
    model = parse(f"g (float[4, 256] x) {body}")
    result = api.optimize(
        model, budget="min", settings=Settings(threads=1, fresh=True),
        options=PlanOptions(time_limit=2.0, threads=1), bench_seconds=0,
    )  # fmt: skip
    assert result.facts()["bit_equal"]
    path = tmp_path / "out.onnx"
    result.save(path)
    feeds = {"x": np.ones((4, 256), np.float32)}
    found, wanted = (named_outputs(one, feeds, None) for one in (read_model(path), model))
    assert compare(found, wanted).ok


@pytest.mark.parametrize("declared", ["4, 8", "N, 8"])
def test_sequences_of_another_batch(declared: str, tmp_path: Path) -> None:
    body = "{ a = Sin(x) y = SequenceConstruct(a) }"
    model = parse(f"g (float[4, 8] x) => (seq(float[{declared}]) y) {body}")
    path = tmp_path / "out.onnx"
    set_batch(model, path, 6)
    (found,) = named_outputs(read_model(path), {"x": np.ones((6, 8), np.float32)}, None)["y"]
    assert found.shape == (6, 8)
