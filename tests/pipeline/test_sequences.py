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
