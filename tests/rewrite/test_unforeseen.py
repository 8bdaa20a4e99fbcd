"""What a session with default options is not to know, or compute, as it opens a file."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from onnx import numpy_helper

from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.unforeseen import LEAST, SHOWN, all_unforeseen, told
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import lasting_tensors, resident_weights
from onnxremat.ort.session import DEFAULT
from onnxremat.rewrite.emit import rewrite
from onnxremat.rewrite.pins import add_pins
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.plan import Plan
from onnxremat.session.measure import predict
from tests.toolbox import ONE, graph_of, parse, run

# Masks of 64 KiB that follow from constants alone: how they are made, constants of float numbers,
# and others.
MASKS = {
    "zeros": ("m = ConstantOfShape(size)", {}, "int64[2] size = {128, 128}"),
    "zeros, changed": (
        "z = ConstantOfShape(size) n = ScatterND(z, at, v) m = Neg(n)",
        {"v": (2,)},
        "int64[2] size = {128, 128}, int64[2, 2] at = {0, 1, 5, 7}",
    ),
    "a row of them": ("m = Expand(r, size)", {"r": (128,)}, "int64[2] size = {128, 128}"),
    "a row as often": ("m = Tile(r, often)", {"r": (1, 128)}, "int64[2] often = {128, 1}"),
    "an image enlarged": (
        'w = Resize<mode = "nearest">(r, , , size) m = Reshape(w, flat)',
        {"r": (1, 1, 8, 8)},
        "int64[4] size = {1, 1, 128, 128}, int64[2] flat = {128, 128}",
    ),
    "compared": (
        "b = Less(r, c) m = Cast<to = 1>(b)",
        {"r": (128, 1), "c": (1, 128)},
        "int64[2] size = {128, 128}",
    ),
    "a range": (
        "n = Range(first, end, by) f = Cast<to = 1>(n) m = Reshape(f, flat)",
        {},
        "int64 first = {0}, int64 end = {16384}, int64 by = {1}, int64[2] flat = {128, 128}",
    ),
}


class Asked:
    """onnxruntime as it is."""

    def lasting(self, graph: Graph) -> set[str]:
        return lasting_tensors(to_model(graph), None)

    def executed(self, graph: Graph) -> list[str]:
        return [kernel.name for kernel in run(graph, DEFAULT).kernels]


def masked(kind: str) -> Graph:
    """An image that a mask is added to in the middle."""
    made, floats, others = MASKS[kind]
    model = parse(
        f"g (float[128, 128] x) => (float[128, 128] y) <{others}> {{ "
        f"a = Sin(x) p = Cos(a) {made} q = Add(p, m) d = Sin(q) e = Relu(d) y = Add(q, e) }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in floats.items():
        values = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return build_graph(model)


@pytest.mark.parametrize("kind", MASKS)
def test_what_follows_from_constants_is_not_held_under_default_options(kind: str) -> None:
    graph = masked(kind)
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops]), Asked())
    assert resident_weights(made.model(), "all", None) < graph.weight_bytes + 2000
    default, planned = run(made.graph, DEFAULT), run(made.graph)
    assert default.live_peak <= planned.live_peak + 64  # a number
    assert predict(made.graph, ONE).live_peak == planned.live_peak
    for name, values in run(graph, DEFAULT).outputs.items():
        np.testing.assert_array_equal(default.outputs[name], values)
        np.testing.assert_array_equal(planned.outputs[name], values)
    assert build_graph(restored(made.model())).ops == graph.ops


@pytest.mark.parametrize("kind", MASKS)
def test_no_size_of_a_large_value_is_known_as_a_file_is_opened(kind: str) -> None:
    graph = masked(kind)
    made = all_unforeseen(graph, frozenset())
    known = [
        name for name, shape in told(made)
        if made.tensors[name].bytes >= LEAST and all(isinstance(size, int) for size in shape)
    ]  # fmt: skip
    assert not known


def test_an_image_enlarged_to_a_size_that_is_known_is_given_back() -> None:
    """Its size is a constant, whatever it is made of."""
    graph = graph_of(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 64, 64] y) <int64[4] size = {1, 4, 64, 64}> {
        a = Sin(x) b = Resize<mode = "nearest">(a, , , size) c = Sin(b)
        d = Resize<mode = "nearest">(a, , , size) y = Add(c, d) }"""
    )
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops]), Asked())
    assert run(made.graph, DEFAULT).live_peak <= 1.01 * run(made.graph).live_peak


def test_dead_buffers_are_given_back_where_axes_change_places() -> None:
    """What is known of a value's axes tells nobody those of its transpose."""
    values = "".join(
        f"t{i} = Transpose<perm = [2, 0, 1]>(h{i}) "
        f"s{i} = Sin(t{i}) p{i} = MatMul(s{i}, w) "
        f"b{i} = Transpose<perm = [1, 2, 0]>(p{i}) h{i + 1} = Add(b{i}, h{i}) "
        for i in range(3)
    )
    model = parse(f"g (float[64, 32, 16] h0) => (float[64, 32, 16] h3) {{ {values} }}")
    weights = numpy_helper.from_array(np.eye(32, dtype=np.float32), "w")
    model.graph.initializer.append(weights)
    graph = build_graph(model)
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops]), Asked())
    default, planned = run(made.graph, DEFAULT), run(made.graph)
    assert default.live_peak <= planned.live_peak + 64
    assert planned.live_peak == predict(made.graph, ONE).live_peak  # in place, too


def test_a_value_that_is_pinned_is_taken_over_all_the_same() -> None:
    graph = graph_of(
        """g (float[256, 4] x) => (float[256, 4] y) {
        a = Sin(x) t = Transpose(a) b = MatMul(a, t) c = Softmax(b) y = MatMul(c, a) }"""
    )
    hidden = all_unforeseen(graph, frozenset())
    (extra,) = [op.name for op in graph.ops if "b" in op.outputs]
    pinned = add_pins(hidden, extra={extra})
    (pin,) = [op for op in pinned.ops if op.op_type == "Size" and "b" in op.inputs]
    assert pinned.ops.index(pin) > max(k for k, op in enumerate(pinned.ops) if "c" in op.inputs)
    assert run(pinned).live_peak == predict(pinned, ONE).live_peak


@pytest.mark.parametrize(
    "kind", ["Add(t{i}, w{i})", "Where(c, t{i}, w{i})", "ScatterElements<axis = 0>(w{i}, at, v)"]
)
def test_constants_do_not_tell_how_large_what_is_made_of_them_is(kind: str) -> None:
    """A graph net adds messages to zeros: that gave every state's shape away."""
    steps = "".join(
        f"t{i} = Sin(h{i}) s{i} = {kind.format(i=i)} u{i} = MatMul(s{i}, p) g{i} = Sin(u{i}) "
        f"r{i} = MatMul(g{i}, q) d{i} = Cos(r{i}) h{i + 1} = Mul(h{i}, d{i}) "
        for i in range(3)
    )
    model = parse(
        "g (float[128, 64] h0, int64[2, 64] at, float[2, 64] v) => (float[128, 64] h3) "
        f"{{ n = Neg(h0) c = Less(n, h0) {steps} }}"
    )
    rng, shapes = np.random.default_rng(0), {"p": (64, 200), "q": (200, 64)}
    for name, shape in {**shapes, **{f"w{i}": (128, 64) for i in range(3)}}.items():
        values = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    graph = build_graph(model)
    assert not [
        name for name, shape in told(all_unforeseen(graph, frozenset()))
        if name[0] in "sudr" and all(isinstance(size, int) for size in shape)
    ]  # fmt: skip
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops]), Asked())
    default, planned = run(made.graph, DEFAULT), run(made.graph)
    assert default.live_peak <= planned.live_peak + 64
    assert planned.live_peak == predict(made.graph, ONE).live_peak
    for name, values in run(graph, DEFAULT).outputs.items():
        np.testing.assert_array_equal(default.outputs[name], values)
    assert build_graph(restored(made.model())).ops == graph.ops


def test_inputs_of_half_precision_are_hidden_behind_their_casts() -> None:
    """onnxruntime computes in float32 what it was given in half precision: shapes are as known
    there, and dead buffers would wait for the next of their shape."""
    sizes = (16, 24, 32, 40)
    forth = "".join(f"h{i + 1} = MatMul(h{i}, w{i}) s{i} = Sin(h{i + 1}) " for i in range(3))
    back = "".join(
        f"r{i} = MatMul(h{i}, z{i}) q{i} = Mul(g{i + 1}, r{i}) g{i} = MatMul(q{i}, v{i}) "
        for i in reversed(range(3))
    )
    model = parse(
        f"g (float16[64, 16] x) => (float16[64, 16] y) {{ t = Transpose<perm = [1, 0]>(x) "
        f"u = Transpose<perm = [1, 0]>(t) h0 = Cast<to = 1>(u) {forth} g3 = Cos(s2) {back} "
        "y = Cast<to = 10>(g0) }"
    )
    for at, pair in enumerate(pairwise(sizes)):
        for kind, shape in (("w", pair), ("z", pair), ("v", pair[::-1])):
            values, name = np.full(shape, 0.01 + (kind == "z"), np.float32), f"{kind}{at}"
            model.graph.initializer.append(numpy_helper.from_array(values, name))
    graph = build_graph(model)
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops]), Asked())
    default, planned = run(made.graph, DEFAULT), run(made.graph)
    assert default.live_peak <= planned.live_peak + 64
    foreseen = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops]), foreseen=True)
    assert run(foreseen.graph, DEFAULT).live_peak > 1.1 * planned.live_peak
    assert [k.outputs for k in default.kernels if k.name == "y"] == [
        k.outputs for k in run(graph).kernels if k.name == "y"
    ]
    assert build_graph(restored(made.model())).ops == graph.ops


class Fused(Asked):
    """Fuses values away where it knows their shapes."""

    def __init__(self, *gone: str) -> None:
        self.gone = gone

    def lasting(self, graph: Graph) -> set[str]:
        there = {name for op in graph.ops for name in op.writes}
        return there if SHOWN in graph.tensors else there.difference(self.gone)


def test_a_little_less_is_fused_for_hidden_shapes() -> None:
    """A file that waits may take much more than its budget under default options; a small value
    that is not fused away is in the plan anyway. Where much is fused, shapes stay known."""
    model = parse(
        "g (float[64, 64] x) => (float[64, 64] y, float[64] z) "
        "{ a = Sin(x) b = Cos(a) y = Sin(b) m = ReduceMean<keepdims = 0>(b, axes) z = Relu(m) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    graph = build_graph(model)
    plan = Plan.of(graph, [op.name for op in graph.ops])
    assert SHOWN in rewrite(graph, plan, Fused("m")).graph.tensors
    assert SHOWN not in rewrite(graph, plan, Fused("a")).graph.tensors


def test_names_of_dimensions_need_no_block_of_their_own() -> None:
    """A C++ string of up to 15 characters lies in its place; onnxruntime keeps each three times."""
    text = "net (float[2, 128, 64] x) => (float[2, 128, 64] a_long_name_of_a_value) "
    made = all_unforeseen(
        graph_of(f"{text} {{ another = Sin(x) a_long_name_of_a_value = Cos(another) }}"),
        frozenset(),
    )
    names = [dim for _, shape in told(made) for dim in shape if isinstance(dim, str)]
    assert names
    assert max(map(len, names)) <= 15
