"""Models whose values are sequences of tensors: they run as they are, and their bytes count."""

from __future__ import annotations

from dataclasses import replace

from onnxremat import api
from onnxremat.pipeline.prepare import Settings
from onnxremat.planner.options import PlanOptions
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
