"""What onnxremat relies on in stock onnxruntime, one fact per test.

A new onnxruntime that breaks one of these changes what plans mean; the simulator, the gates and
the pins must then follow.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.errors import MissingComponentError
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import default_order, priority_order, reordered
from onnxremat.graph.traits import ALIAS, INPLACE
from onnxremat.ort import profile as profiles
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import Profiling, profile
from onnxremat.ort.session import LEVELS, Options
from onnxremat.ort.weights import held_by
from onnxremat.rewrite.emit import rewrite
from onnxremat.rewrite.gates import add_gates
from onnxremat.rewrite.pins import add_pins, is_added
from onnxremat.schedule.expand import expand
from onnxremat.schedule.plan import Plan
from onnxremat.schedule.simulate import Rules, simulate
from tests.toolbox import ONE, PLAIN, graph_of, names, parse, random_dag, run, shuffled

EVERY_LEVEL = pytest.mark.parametrize("level", list(LEVELS))


# Shapes


def test_a_model_that_is_only_read_has_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = to_model(
        graph_of("""g (float[2, 3] x) => (float[6] z, int64 n) {
        s = Shape(x)
        n = ReduceProd<keepdims = 0>(s)
        m = Constant<value_ints = [-1]>()
        y = com.microsoft.Gelu(x)
        z = Reshape(y, m)
    }""")
    )
    opened = build_graph(model).tensors
    assert build_graph(model, opened=False).tensors == opened
    monkeypatch.delattr("onnxruntime.capi.onnxruntime_pybind11_state.InferenceSession")
    monkeypatch.setattr("onnxremat.ort.session.open_session", lambda *_: _Signature)
    assert build_graph(model, opened=False).tensors.keys() == opened.keys()  # asked otherwise


class _Signature:
    """A session that tells nothing."""

    get_outputs = get_inputs = staticmethod(list)


# Order


@pytest.mark.parametrize("seed", range(12))
def test_default_order_is_the_reverse_depth_first_walk(seed: int) -> None:
    graph = shuffled(build_graph(random_dag(seed, 24)), Random(seed))
    expected = [op.name for op in reordered(graph, default_order(graph)).ops]
    assert names(run(graph, PLAIN)) == expected


@pytest.mark.parametrize("seed", range(12))
def test_priority_order_is_the_listed_order(seed: int) -> None:
    graph = shuffled(build_graph(random_dag(seed, 24)), Random(seed))
    assert names(run(graph, ONE)) == [op.name for op in graph.ops]
    assert priority_order(graph) == list(range(len(graph.ops)))


def test_priority_order_runs_shape_and_size_as_soon_as_they_can() -> None:
    graph = graph_of(
        """g (float[4] x) => (float[4] y, int64 n, int64[1] s) {
        a = Sin(x)  b = Cos(a)  c = Sin(b)  y = Cos(c)  n = Size(a)  s = Shape(b) }"""
    )
    expected = [op.name for op in reordered(graph, priority_order(graph)).ops]
    assert expected != [op.name for op in graph.ops]
    assert names(run(graph, ONE)) == expected


@EVERY_LEVEL
@pytest.mark.parametrize("seed", range(4))
def test_size_pins_make_the_default_order_the_planned_one(seed: int, level: str) -> None:
    graph = shuffled(build_graph(random_dag(seed, 24, plain=True)), Random(seed))
    wanted = [op.name for op in graph.ops]
    assert names(run(graph, PLAIN)) != wanted, "the order needs no pins: the test shows nothing"
    ran = names(run(add_pins(graph), Options(level=level, threads=1)))
    assert [name for name in ran if not is_added(name)] == wanted


# Merging of duplicates

RECOMPUTED = {
    "MatMul": "a = MatMul(x, x)",
    "Relu": "a = Relu(x)",
    "Transpose": "a = Transpose<perm = [1, 0]>(x)",
    "Softmax": "a = Softmax<axis = -1>(x)",
    "Add": "a = Add(x, x)",
}


def _twice(line: str):
    """The graph, and the same with the first op run twice (the last reader reads the copy)."""
    graph = graph_of(
        f"g (float[8, 8] x) => (float[8, 8] y) {{ {line} b = Sin(a) c = Cos(b) y = Mul(c, a) }}"
    )
    first, *rest = (op.name for op in graph.ops)
    return first, expand(graph, [first, *rest[:2], first, rest[2]])


def _copies(graph, origin: str, level: str) -> int:
    found = run(graph, Options(level=level, threads=1))
    return sum(name in (origin, f"{origin}__r1") for name in names(found))


@EVERY_LEVEL
@pytest.mark.parametrize("line", RECOMPUTED.values(), ids=RECOMPUTED)
def test_plain_duplicates_merge_and_gated_ones_do_not(line: str, level: str) -> None:
    origin, twice = _twice(line)
    assert _copies(twice, origin, level) == (2 if level == "disable" else 1)
    assert _copies(add_pins(add_gates(twice)), origin, level) == 2


def test_gates_take_no_memory() -> None:
    graph = graph_of(
        """g (float[256, 256] x) => (float[256, 256] y) {
        a = Sin(x)  b = Cos(a)  c = Sin(b)  y = Add(c, a) }"""
    )
    first, *rest = (op.name for op in graph.ops)
    twice = expand(graph, [first, *rest[:2], first, rest[2]])
    gated = add_gates(twice)
    assert any(op.op_type == "Reshape" for op in gated.ops)
    plain, with_gate = run(twice), run(gated)
    # Its Size and Mul values (8 and 16 bytes) are all that may be added.
    assert 0 <= with_gate.live_peak - plain.live_peak <= 2 * 256


def test_random_ops_give_other_values_when_run_again() -> None:
    graph = graph_of(
        """g (float[64] x) => (float[64] y) {
        a = RandomNormalLike(x)  b = RandomNormalLike(x)  y = Sub(a, b) }"""
    )
    assert np.abs(run(graph).outputs["y"]).max() > 0.1


# Buffers

SHAPE = "float[4, 8, 16, 16]"
BYTES = 4 * 4 * 8 * 16 * 16
# How to write each op so that its output has the shape of its input `a`.
CALLS = {
    "Flatten": "Flatten<axis = 2>(a)",
    "Squeeze": "Squeeze(a)",
    "Unsqueeze": "Unsqueeze(a, axis)",
    "Reshape": "Reshape(a, shape)",
    "Cast": "Cast<to = 1>(a)",
    "Clip": "Clip(a, low, high)",
    "ScatterElements": "ScatterElements(a, where, what)",
    "Expand": "Expand(a, shape)",
    "Dropout": "Dropout(a)",
    "Pow": "Pow(a, high)",
    "Sum3": "Sum(a, a, a)",
    "Not": "Not(a)",
    "Where": "Where(yes, a, low)",
}
INITIALIZERS = (
    "int64[1] axis = {0}, int64[4] shape = {4, 8, 16, 16}, float low = {-1.0}, float high = {1.0}, "
    "bool yes = {1}, int64[1,1,1,1] where = {0}, float[1,1,1,1] what = {0.5}"
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
# Popular ops that allocate a fresh output, whatever other runtimes do.
FRESH = (
    *BINARY,
    *("Sqrt", "Exp", "Log", "Neg", "Abs", "Erf", "Sin", "Cos", "Floor", "Reciprocal", "Gelu"),
    *("Sign", "Round", "HardSwish", "Mish", "Expand", "Dropout", "Pow", "Where"),
)

# Those that are not of ONNX's newest operators, or read more: opset, input, initializers, call.
_SQUARE = "int64[2, 2] where = {0, 1, 1, 0}, float[2, 2] what = {5, 6, 7, 8}"
_ONES = "float[8, 8, 1, 1] w = {" + ", ".join("1" * 64) + "}, float[8] b = {0, 0, 0, 0, 0, 0, 0, 0}"
_LEAF = (
    "n_targets = 4, nodes_treeids = [0], nodes_nodeids = [0], nodes_featureids = [0], "
    'nodes_values = [0.0], nodes_modes = ["LEAF"], nodes_truenodeids = [0], '
    "nodes_falsenodeids = [0], target_treeids = [0], target_nodeids = [0], target_ids = [0], "
    "target_weights = [1.0]"
)
OTHERS = {
    "BitCast": (26, "2, 2", "", "BitCast<to = 6>(a)"),
    "TensorScatter": (24, "2, 1, 2, 2", "float[2, 1, 1, 2] what = {1, 2, 3, 4}",
                      "TensorScatter(a, what)"),
    "Scatter": (10, "2, 2", _SQUARE, "Scatter(a, where, what)"),
    "ParametricSoftplus": (7, "2, 2", "", "ParametricSoftplus<alpha = 2.0, beta = 1.0>(a)"),
    "ScaledTanh": (7, "2, 2", "", "ScaledTanh<alpha = 2.0, beta = 1.0>(a)"),
    "com.microsoft.Trilu": (18, "2, 2", "", "com.microsoft.Trilu(a)"),
    "com.microsoft.ExpandDims": (18, "2, 2", "int32 at = {0}", "com.microsoft.ExpandDims(a, at)"),
    "com.microsoft.FusedConv": (18, "4, 8, 16, 16", _ONES,
                                "com.microsoft.FusedConv<kernel_shape = [1, 1]>(x, w, b, a)"),
    "ai.onnx.ml.TreeEnsembleRegressor": (
        18, "6, 4", "", f"ai.onnx.ml.TreeEnsembleRegressor<{_LEAF}>(a)"),
}  # fmt: skip


def _delta(op_type: str, *, dying: bool) -> int:
    """Bytes in use after the op, less those before it, counted at the ends of kernels."""
    call = CALLS.get(op_type, f"{op_type}(a, x)" if op_type in BINARY else f"{op_type}(a)")
    keep = "" if dying else " m = ReduceMax<keepdims = 0>(a)"
    more = "" if dying else ", float m"
    graph = graph_of(
        f"""g ({SHAPE} x) => (float n{more}) <{INITIALIZERS}> {{
        a = Atan(x)  o = {call}  n = ReduceMin<keepdims = 0>(o) {keep} }}""",
        opset=20,
    )
    row = next(i for i, op in enumerate(graph.ops) if "o" in op.outputs)
    found = run(graph)
    return found.kernels[row].live - found.kernels[row - 1].live


@pytest.mark.parametrize("op_type", sorted(ALIAS))
def test_alias_ops_share_their_input_even_when_it_lives_on(op_type: str) -> None:
    assert _delta(op_type, dying=True) == 0
    assert _delta(op_type, dying=False) == 0


@pytest.mark.parametrize("op_type", sorted(n for d, n in INPLACE if not d and n not in OTHERS))
def test_inplace_ops_take_over_a_dying_input_only(op_type: str) -> None:
    assert _delta(op_type, dying=True) == 0
    assert _delta(op_type, dying=False) == BYTES


@pytest.mark.parametrize("op_type", FRESH)
def test_other_ops_allocate_their_output(op_type: str) -> None:
    assert _delta(op_type, dying=True) == BYTES


@pytest.mark.parametrize("op_type", OTHERS)
def test_rarer_ops_take_over_a_dying_input(op_type: str) -> None:
    opset, shape, weights, call = OTHERS[op_type]
    domains = ", ".join(f'"{name}" : {version}' for name, version in (
        ("", opset), ("com.microsoft", 1), ("ai.onnx.ml", 3)))  # fmt: skip
    model = onnx.parser.parse_model(
        f"<ir_version: 9, opset_import: [{domains}]> g (float[{shape}] x) => (n) <{weights}> {{ "
        f"a = Neg(x)  o = {call}  n = Concat<axis = 0>(o) }}"
    )
    graph = build_graph(model)
    live = [kernel.live for kernel in run(graph).kernels]
    assert live[0] == live[1]
    assert list(simulate(graph).live) == live
    model.graph.output.add(name="a")  # lives on
    graph = build_graph(model)
    assert list(simulate(graph).live) == [kernel.live for kernel in run(graph).kernels]


@pytest.mark.parametrize(("to", "delta"), [(6, 0), (2, BYTES // 4), (11, 2 * BYTES)])
def test_inplace_needs_the_same_element_size(to: int, delta: int) -> None:
    """Cast float to int32 is in place; to uint8 and double it is not."""
    graph = graph_of(
        f"""g ({SHAPE} x) => (n) {{
        a = Atan(x)  o = Cast<to = {to}>(a)  n = ReduceMin<keepdims = 0>(o) }}"""
    )
    found = run(graph)
    assert found.kernels[1].live - found.kernels[0].live == delta


@pytest.mark.parametrize("call", ["Relu(a)", "Reshape(a, shape)", "Identity(a)"])
def test_graph_outputs_are_buffers_of_their_own(call: str) -> None:
    graph = graph_of(
        f"g ({SHAPE} x) => ({SHAPE} y) <int64[4] shape = {{4, 8, 16, 16}}> {{ "
        f"a = Atan(x) y = {call} }}"
    )
    first, second = run(graph).kernels
    assert (first.live, second.live) == (BYTES, 2 * BYTES)


def test_inputs_are_never_taken_over_nor_counted() -> None:
    graph = graph_of(f"g ({SHAPE} x) => (float[] n) {{ a = Relu(x) n = ReduceMin<keepdims=0>(a) }}")
    assert run(graph).kernels[0].live == BYTES


MIXED = """g (float[2, 4096] x) => (float[1, 1] y) <int64[1] s = {0}, int64[1] e = {2}> {
    a0 = Sin(x)  a1 = Cos(a0)  b0 = Concat<axis = 0>(a1, a1)
    b1 = Sin(b0)  b2 = Cos(b1)  b3 = Max(b0, b1, b2)
    a2 = Slice(b3, s, e)  a3 = Sin(a2)  y = ReduceMax<keepdims = 1>(a3) }"""


def test_reuse_holds_dead_buffers_for_values_of_the_same_shape() -> None:
    graph = graph_of(MIXED)
    held = run(graph, replace(ONE, reuse=True))
    given_back = run(graph, ONE)
    assert held.live_peak == given_back.live_peak + 2 * (4 * 2 * 4096)  # a0, a1 wait for a2, a3
    for options, found in ((Rules(reuse=True), held), (Rules(), given_back)):
        scratch = {kernel.name: kernel.scratch for kernel in found.kernels}
        assert simulate(graph, options, scratch=scratch).live_peak == pytest.approx(
            found.live_peak, abs=256
        )


def test_named_outputs_that_nobody_reads_stay_to_the_end() -> None:
    body = """g (float[1, 4, 32, 32] x) => (float[] n) {{
        p{second} = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        a = Sin(p)  b = Cos(a)  n = ReduceMin<keepdims = 0>(b) }}"""
    named, unnamed = (run(graph_of(body.format(second=s))) for s in (", indices", ""))
    kept = 8 * 4 * 16 * 16
    for with_indices, without in zip(named.kernels, unnamed.kernels, strict=True):
        assert with_indices.live - without.live == kept


def test_values_that_nobody_reads_take_no_dead_buffer() -> None:
    body = """g (float[256] x) => (float[1] y) {{
        a = Sin(x)  b = Concat<axis = 0>(a, a)  u = Cos(x)  w = {source}(x)
        c = ReduceMax<keepdims = 1>({read})  y = ReduceMax<keepdims = 1>(b) }}"""
    reuse = replace(ONE, reuse=True)
    unread = run(graph_of(body.format(source="Sin", read="b")), reuse)
    assert [k.live for k in unread.kernels][1:4] == [3072, 3072, 4096]  # u and w: 1024 each
    read = run(graph_of(body.format(source="Sin", read="w")), reuse)
    assert [k.live for k in read.kernels][1:4] == [3072, 3072, 3072]  # w takes the buffer of u


# The meter: what the profile says


def test_byte_counters_are_exact() -> None:
    graph = graph_of(
        """g (float[100] x) => (float[100] y) {
        a = Sin(x)  b = Concat<axis = 0>(a, a)  c = Cos(b)  d = ReduceMax<keepdims = 1>(c)
        y = Add(a, d) }"""
    )
    found = run(graph)
    # Requests as they are, not rounded: 400 bytes a value, 800 for b and c, 4 for d.
    assert [k.live for k in found.kernels] == [400, 1200, 400 + 1600, 400 + 800 + 4, 400 + 4 + 400]
    assert found.live_peak == 2000


def test_scratch_is_counted_apart() -> None:
    graph = graph_of(
        """g (float[2, 8, 16, 16] x) => (float[2, 8, 16, 16] y) {
        a = Sin(x)  b = Softmax<axis = 1>(a)  c = LRN<size = 3>(b)  y = Sum(a, b, c) }"""
    )
    size = 4 * 2 * 8 * 16 * 16
    scratch = {k.op_type: k.scratch for k in run(graph).kernels}
    padded = 4 * (8 + 3 - 1) * 16 * 16  # LRN: the squares of one image, and a scale per value
    assert scratch == {"Sin": 0, "Softmax": 2 * size, "LRN": size + padded, "Sum": size}


def test_counters_are_those_of_the_last_run() -> None:
    graph = graph_of("g (float[64] x) => (float[64] y) { a = Sin(x) y = Cos(a) }")
    from onnxremat.ort.feeds import seeded_feeds

    once, often = (
        profile(to_model(graph), seeded_feeds(graph), ONE, Profiling(runs, warmup))
        for runs, warmup in ((1, 0), (3, 2))
    )
    assert [k.live for k in once.kernels] == [k.live for k in often.kernels] == [256, 512]
    # An output that onnxruntime returned would keep all of its session's pool.
    assert all(value.flags.owndata for value in once.outputs.values())


def test_a_runtime_whose_profile_has_no_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnxruntime 1.24's has none: zeros would keep every budget."""
    monkeypatch.setattr(profiles, "IN_USE", "what_it_does_not_write")
    with pytest.raises(MissingComponentError, match="does not say what a run holds"):
        run(graph_of("g (float[4] x) => (float[4] y) { y = Sin(x) }"))


def test_default_options_carry_out_a_plan_with_recomputation() -> None:
    """Gates and pins together, in a session opened without any option."""
    graph = graph_of(
        """g (float[64, 256] x) => (float[64, 256] y) {
        a = Sin(x)  b = Cos(a)  c = Sin(b)  d = Cos(c)  e = Mul(d, b)  y = Add(e, a) }"""
    )
    ops = [op.name for op in graph.ops]
    plan = Plan.of(graph, [*ops[:4], ops[0], ops[1], ops[4], ops[5]])
    made = rewrite(graph, plan)
    ran = names(run(made.graph, Options()))
    planned = [op.name for op in made.graph.ops if not is_added(op.name)]
    assert [name for name in ran if not is_added(name)] == planned
    assert np.array_equal(run(made.graph, Options()).outputs["y"], run(graph).outputs["y"])


def test_a_weight_that_is_returned_takes_a_copy() -> None:
    """A weight that is packed is there as it is besides (in the memory of the model, which the
    allocator does not count); small ones lie in the session's own. An input is handed on."""
    model = parse("""g (float[8, 32] x) => (float[8, 48] y, float[32, 48] w, float[8, 32] x) {
        y = MatMul(x, w) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((32, 48), np.float32), "w"))
    graph, weight = build_graph(model), 4 * 32 * 48
    assert run(graph).weight_bytes == 2 * weight
    assert held_by(graph) == 3 * weight
    small = graph_of("g (float[4] x) => (float[4] y, float[3] w) <float[3] w = {1, 2, 3}> "
                     "{ y = Sin(x) }")  # fmt: skip
    assert held_by(small) == run(small).weight_bytes == 2 * 12


@pytest.mark.parametrize("outer", [("s", "s", "i"), ("", "", ""), ("s", "", "i")])
@pytest.mark.parametrize("small", [0, 1])
def test_workspace_in_a_body_is_no_other_ops(outer: tuple[str, ...], small: int) -> None:
    """Whatever nodes are called: profiles tell them by their names."""
    sizes = [64, 8] if small else [8, 64]
    model = parse(f"""g (float[{sizes[0]},64,32] x, float[{sizes[1]},64,32] z, bool c) => (y, p) {{
        y = Softmax<axis = 1>(x)
        p = If(c) <then_branch = t () => (q) {{ q = Softmax<axis = 1>(z) }},
                   else_branch = e () => (r) {{ r = Sin(z) }}> }}""")
    first, branch = model.graph.node
    first.name, branch.name = outer[0], outer[2]
    for each in branch.attribute:
        each.g.node[0].name = outer[1]
    graph = build_graph(model)
    feeds = {n: np.ones(graph.tensors[n].shape or (), np.float32) for n in ("x", "z")}
    found = profile(to_model(graph), {**feeds, "c": np.array(True)}, ONE)
    values = [4 * size * 64 * 32 for size in sizes]
    assert [kernel.scratch for kernel in found.kernels] == [2 * size for size in values]


@pytest.mark.parametrize("scale", [np.float32, np.float16])
@pytest.mark.parametrize("level", [0, 4])
def test_products_of_few_bits_pack_scales_and_sums_beside_the_bits(
    level: int, scale: type[np.floating[Any]]
) -> None:
    """Where the processor has kernels for them; the scales as they are stay in the memory of the
    model, which the allocator does not count."""
    deep, wide, block = 256, 512, 32
    bits = np.full((wide, deep // block, block // 2), 0x93, np.uint8)
    scales = np.full(wide * deep // block, 0.1, scale)
    given = {"K": deep, "N": wide, "bits": 4, "block_size": block, "accuracy_level": level}
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", **given
    )  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(scale))
    ends = [
        helper.make_tensor_value_info(name, kind, [8, size])
        for name, size in (("x", deep), ("y", wide))
    ]
    held = [numpy_helper.from_array(array, name) for name, array in (("b", bits), ("s", scales))]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    body = helper.make_graph([node], "g", ends[:1], ends[1:], held)
    graph = build_graph(helper.make_model(body, opset_imports=opsets, ir_version=9))
    packed = run(graph).weight_bytes
    if packed < bits.nbytes:
        pytest.skip("no kernels for it on this processor")
    assert 0 <= held_by(graph) - scales.nbytes - packed <= 128
