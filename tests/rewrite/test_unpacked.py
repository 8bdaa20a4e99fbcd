"""Weights that several kernels read: a second packed copy that does not fit is not made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat import api
from onnxremat.ort.infer import build_graph
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.unpacked import beyond, packed_again
from onnxremat.session.resident import resident_rise
from tests.toolbox import parse

SIDE, ROWS = 1536, 64
SHORT = PlanOptions(work=500, threads=1)
MIB = 1 << 20


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """One large product, and a small one."""
    made = parse(
        f"g (float[{ROWS},{SIDE}] x) => (float[{ROWS},8] y) "
        "{ a = MatMul(x, w) b = Sin(a) c = Mul(a, b) y = MatMul(c, v) }"
    )
    drawn = np.random.default_rng(0)
    for name, wide in (("w", SIDE), ("v", 8)):
        weight = drawn.standard_normal((SIDE, wide), np.float32) * np.float32(SIDE**-0.5)
        made.graph.initializer.append(numpy_helper.from_array(weight, name))
    return made


def test_only_what_several_kernels_pack_and_does_not_fit_twice_is_left_unpacked() -> None:
    made = parse(
        "g (float[2,8] x) => (float[2,8] y) {"
        " a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, v) d = Add(c, v0) e = Add(d, v0)"
        " t = MatMul(v1, e) u = MatMul(v1, t) k = MatMul(u, s) y = Gemm(k, s) }"
    )
    for name, rows in (("w", 8), ("v", 8), ("v0", 2), ("v1", 2), ("s", 8)):
        value = np.ones((rows, 2 if name == "v1" else 8), np.float32)
        made.graph.initializer.append(numpy_helper.from_array(value, name))
    graph = build_graph(made)
    assert packed_again(graph) == {"w": 256, "s": 256}
    assert beyond(graph, 255) == {"w", "s"}
    assert not beyond(graph, 256)
    body = "(int64 i, bool c, float[2,8] s) => (bool d, float[2,8] t)"
    body += "{ d = Identity(c) t = MatMul(s, w) }"
    loops = [f"{b} = Loop (n, go, {a}) <body = b{b} {body}>" for a, b in ("xp", "py")]
    made = parse(f"g (float[2,8] x, int64 n, bool go) => (float[2,8] y) {{ {' '.join(loops)} }}")
    made.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    assert packed_again(build_graph(made)) == {"w": 256}
    for other, found in (("MatMul(x, w)", {"w": 256}), ("Sin(x)", {})):
        made = parse(
            "g (float[2,8] x, bool c) => (float[2,8] y) { y = If (c) <"
            "then_branch = t () => (float[2,8] p) { p = MatMul(x, w) }, "
            f"else_branch = e () => (float[2,8] q) {{ q = {other} }}> }}"
        )
        made.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
        assert packed_again(build_graph(made)) == found


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")
def test_a_batch_in_parts_is_opened_within_its_budget(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    """Packed by each part, the product took 27 MiB on top of what runs need, 9 of it files."""
    settings, out = api.Settings(split_batch=(4,)), tmp_path / "out.onnx"
    for budget, unpacked in ((60 * MIB, False), ("min", True)):
        made = api.optimize(model, budget=budget, settings=settings, options=SHORT, bench_seconds=0)
        made.save(out)
        assert ("w" in {i.name for i in onnx.load(out).graph.input}) == unpacked
        assert any("not packed: several" in note for note in made.facts()["notes"]) == unpacked
        assert [value.name for value in api.load(out).get_inputs()] == ["x"]
    feeds = {"x": np.random.default_rng(1).standard_normal((ROWS, SIDE), np.float32)}
    room = made.facts()["limit_bytes"] + made.facts()["session_bytes"]
    rise = resident_rise(out, feeds, room=room)
    assert rise.kept, rise
