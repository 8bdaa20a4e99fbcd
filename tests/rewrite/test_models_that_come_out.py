"""What a rewrite writes: valid, complete, the same function, whatever the model is made of."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import ModelError, UsageError
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import read_model, to_model, write_model
from onnxremat.graph.traits import may_recompute
from onnxremat.graph.unforeseen import SHOWN
from onnxremat.graph.wire import read_light
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.offline import lasting_tensors, optimise
from onnxremat.ort.profile import profile
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.emit import metadata, rewrite
from onnxremat.rewrite.pins import PREFIX, is_added, stretches
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.plan import Plan
from onnxremat.session.measure import predict
from tests.rewrite.rewritten import PLAIN_ORT, assert_same, every_op_twice
from tests.toolbox import ONE, graph_of, parse, random_dag, run, training_chain

EXPORTED = Path(__file__).parents[1] / "grad" / "exported"
MODELS = {
    "scalars": """g (float[1] x, float[3] z) => (y) <float c = {2.0}> {
        a = ReduceMax<keepdims = 0>(x)  b = Mul(a, c)  d = Sin(b)  e = Add(d, a)
        y = Mul(e, z) }""",
    "zero-size tensors": """g (float[4, 8] x) => (float[0, 8] y, float[4, 8] u)
        <int64[1] s = {2}, int64[1] e = {2}> {
        a = Sin(x)  b = Slice(a, s, e)  c = Cos(b)  d = Relu(c)  y = Add(d, c)  u = Exp(a) }""",
    "integers": """g (int64[4, 8] x) => (int64[4, 8] y) <int64 c = {3}> {
        a = Mul(x, c)  b = Add(a, x)  d = Abs(b)  y = Sub(d, a) }""",
    "booleans": """g (bool[4, 8] x) => (bool[4, 8] y) {
        a = Not(x)  b = And(a, x)  c = Or(a, b)  y = Xor(c, a) }""",
    "double": """g (double[4, 8] x) => (double[4, 8] y) {
        a = Sin(x)  b = Exp(a)  c = Relu(b)  y = Add(c, a) }""",
    "int8": """g (uint8[4, 8] x) => (float[4, 8] y) <float s = {0.1}, uint8 z = {3}> {
        a = DequantizeLinear(x, s, z)  b = Sin(a)  q = QuantizeLinear(b, s, z)
        d = DequantizeLinear(q, s, z)  y = Add(d, a) }""",
    "unused optional outputs": """g (float[1, 4, 16, 16] x) => (float[1, 4, 8, 8] y) {
        p, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)  a = Sin(p)  y = Add(a, p) }""",
    "output read inside": """g (float[8] x) => (float[8] a, float[8] y) {
        a = Sin(x)  b = Cos(a)  y = Add(b, a) }""",
    "output that is a view": """g (float[8] x) => (float[2, 4] y, float[8] a)
        <int64[2] s = {2, 4}> { a = Sin(x)  y = Reshape(a, s) }""",
    "only views": """g (float[8] x) => (float[2, 4] y) <int64[2] s = {2, 4}, int64[1] t = {8}> {
        a = Reshape(x, s)  b = Reshape(a, t)  y = Reshape(b, s) }""",
    "output that is an input": """g (float[8] x) => (float[8] x, float[8] y) {
        a = Sin(x)  y = Cos(a) }""",
    "repeated input": "g (float[8] x) => (float[8] y) { a = Mul(x, x)  y = Add(a, a) }",
    "skipped optional input": """g (float[8] x) => (float[8] y) <float high = {0.5}> {
        a = Sin(x)  b = Clip(a, , high)  y = Add(a, b) }""",
    "ops without tensor inputs": """g (float[4] x) => (float[4] y) {
        c = Constant<value = float[4] {1.0, 2.0, 3.0, 4.0}>()  a = Add(x, c)  b = Sin(a)
        y = Mul(b, c) }""",
    "random ops": """g (float[8] x) => (float[8] y, float[8] z) {
        a = Sin(x)  n = RandomNormalLike<seed = 1.0>(a)  z = Mul(a, a)  m = Mul(n, x)
        k = Sub(m, m)  y = Add(k, a) }""",
    "a sequence value": """g (float[8] x) => (float[8] y) {
        a = Sin(x)  s = SequenceConstruct(a, x)  y = ConcatFromSequence<axis = 0, new_axis = 0>(s)
        }""".replace("float[8] y", "float[16] y"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_graphs_of_all_kinds(name: str) -> None:
    model = parse(MODELS[name], opset=18)
    # Constant nodes become weights at load in any case.
    assert_same(optimise(model, "portable", None) if "Constant" in MODELS[name] else model)


def test_float16() -> None:
    body = """g (float16[8, 8] x) => (float16[8, 8] y) {
        a = MatMul(x, x)  b = Sin(a)  c = Relu(b)  y = Add(c, a) }"""
    # The CPU runs it in float32 between two casts; what is between them can be recomputed.
    graph = build_graph(optimise(parse(body), "portable", None))
    names = [op.name for op in graph.ops]
    cast, *inner, last = names
    assert graph.ops[0].op_type == graph.ops[-1].op_type == "Cast"
    made = rewrite(graph, Plan.of(graph, [cast, *inner[:-1], *inner[:2], inner[-1], last]))
    onnx.checker.check_model(made.model(), full_check=True)
    feeds = seeded_feeds(graph)
    found = profile(made.model(), feeds, ONE)
    wanted = profile(parse(body), feeds, PLAIN_ORT)
    np.testing.assert_array_equal(found.outputs["y"], wanted.outputs["y"])
    assert {f"{name}__r1" for name in inner[:2]} <= {kernel.name for kernel in found.kernels}


@pytest.mark.parametrize("opset", range(11, onnx.defs.onnx_opset_version() + 1))
def test_every_opset(opset: int) -> None:
    if not _runs(opset):
        pytest.skip(f"this onnxruntime does not run opset {opset}")
    graph = assert_same(parse(
        "g (float[8, 8] x) => (float[8, 8] y) "
        "{ a = MatMul(x, x) b = Relu(a) c = Softmax(b) y = Add(c, a) }", opset, ir=7,
    ))  # fmt: skip
    assert graph.opsets == {"": opset}


def _runs(opset: int) -> bool:
    try:
        graph_of("g (float[1] x) => (float[1] y) { y = Sin(x) }", opset)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("ir", range(3, 12))
@pytest.mark.parametrize("target", ["none", "portable"])
def test_every_ir_version(ir: int, target: str) -> None:
    body = "g (float[8, 8] x) => (float[8, 8] y) { a = MatMul(x, w) b = Sin(a) y = Add(b, a) }"
    model = parse(body, 11, ir)
    model.graph.initializer.append(numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    if ir < 4:  # initializers had to be listed as inputs
        model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (8, 8)))
    graph = assert_same(optimise(bind(model), target, None))
    assert graph.inputs == ("x",)


def test_symbolic_dimensions_bound_by_name_and_by_shape() -> None:
    body = "g (float[n, 4] x, float[n, m] z) => (float[n, m] y) { a = MatMul(x, w) y = Add(a, z) }"
    model = parse(body)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 6), np.float32), "w"))
    for shapes, dims in (({}, {"n": 3, "m": 6}), ({"x": (3, 4), "z": (3, 6)}, {}),
                         ({"x": (3, 4)}, {"m": 6})):  # fmt: skip
        graph = assert_same(bind(model, shapes, dims))
        assert graph.tensors["y"].shape == (3, 6)
    with pytest.raises(UsageError, match=r"z\[m\]"):
        bind(model, {"x": (3, 4)}, {})


def test_unnamed_and_duplicate_node_names() -> None:
    graph = graph_of(
        "g (float[8] x) => (float[8] y) { a = Sin(x) b = Cos(a) c = Exp(b) y = Add(c, a) }"
    )
    model = to_model(graph)
    for node, name in zip(model.graph.node, ("same", "same", "", "same_1"), strict=True):
        node.name = name
    made = assert_same(model)
    names = [op.name for op in made.ops]
    assert len(set(names)) == len(names)
    assert all(names)


def test_names_like_those_of_copies_and_gates() -> None:
    body = """g (float[8] x) => (float[8] y) {
        a = Sin(x)  a__r1 = Cos(a)  b = Exp(a__r1)  y = Add(b, a) }"""
    model = parse(body)
    names = {"b": "onnxremat.gate0", "a__r1": "onnxremat.pin0"}
    for node in model.graph.node:
        node.name = f"{node.output[0]}__r2"
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    made = assert_same(model)
    written = [name for op in made.ops for name in op.writes]
    assert len(set(written)) == len(written)
    assert len({op.name for op in made.ops}) == len(made.ops)


def test_model_functions_are_inlined() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18, "local" : 1]>
        g (float[8] x) => (float[8] y) { a = local.twice(x) b = Sin(a) y = Add(b, a) }
        <domain: "local", opset_import: ["" : 18]>
        twice (p) => (q) { s = Cos(p) q = Add(s, s) }""")
    graph = assert_same(inline_functions(model))
    assert {op.op_type for op in graph.ops} >= {"Cos", "Add", "Sin"}
    assert not graph.model.functions


CONTROL = {
    "If": """g (float[8] x, bool c) => (float[8] y) {
        a = Sin(x)  b = Cos(a)
        d = If(c)<then_branch = t () => (p) { p = Add(b, a) },
                  else_branch = e () => (q) { q = Mul(b, b) }>
        y = Add(d, b) }""",
    "Loop": """g (float[8] x) => (float[8] y) <int64 n = {3}, bool go = {1}> {
        a = Sin(x)  b = Cos(a)
        l = Loop(n, go, a)<body = body (int64 i, bool cin, float[8] s) => (cout, t) {
            cout = Identity(cin)  t = Add(s, b) }>
        y = Add(l, b) }""",
    "If within If": """g (float[8] x, bool c) => (float[8] y) {
        a = Sin(x)  b = Cos(a)
        d = If(c)<then_branch = t () => (p) {
                p = If(c)<then_branch = tt () => (u) { u = Sub(b, a) },
                          else_branch = te () => (v) { v = Identity(b) }> },
            else_branch = e () => (q) { q = Mul(b, b) }>
        y = Add(d, b) }""",
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_is_one_op_that_reads_what_its_bodies_read(name: str) -> None:
    graph = assert_same(parse(CONTROL[name]))
    (control,) = [op for op in graph.ops if op.op_type in ("If", "Loop")]
    assert control.origin == ""
    assert any("__r" in name for name in control.captures), "no capture was renamed: tests nothing"


def test_training_dropout_is_never_recomputed() -> None:
    body = """g (float[64] x) => (float[64] y, bool[64] m) <float r = {0.5}, bool t = {1}> {
        a = Sin(x)  d, m = Dropout<seed = 7>(a, r, t)  b = Cos(d)  y = Add(b, d) }"""
    graph = graph_of(body)
    assert [may_recompute(op) for op in graph.ops] == [True, False, True, True]
    made = rewrite(graph, Plan.of(graph, every_op_twice(graph))).graph
    assert [op.op_type for op in made.ops if not is_added(op.name)].count("Dropout") == 1


def test_inference_dropout_may_be_recomputed() -> None:
    assert_same(
        parse("""g (float[8] x) => (float[8] y) {
        a = Sin(x)  d = Dropout(a)  b = Cos(d)  y = Add(b, d) }""")
    )


def test_nodes_that_say_they_repeat_each_other_end() -> None:
    """In files of others that carry a plan, whose nodes may have no names, too."""
    model = parse("g (float[2] x) => (float[2] y) { a = Sin(x) b = Cos(a) y = Sin(b) }")
    model.metadata_props.add(key="onnxremat.plan", value="{}")
    assert len(restored(model).graph.node) == 3
    for node, name, origin in zip(model.graph.node, "abc", "baa", strict=True):
        node.name = name
        node.metadata_props.add(key="onnxremat.origin", value=origin)
    with pytest.raises(ModelError, match=r"nothing makes it|made by no node"):
        build_graph(restored(model))


def test_names_notes_and_metadata_are_kept() -> None:
    model = parse("g (float[8] x) => (float[8] y) { a = Sin(x) b = Cos(a) y = Add(b, a) }")
    model.doc_string, model.producer_name, model.model_version = "about the model", "maker", 7
    model.domain, model.producer_version = "org.example", "1.2"
    model.metadata_props.add(key="author", value="somebody")
    model.graph.doc_string = "about the graph"
    model.graph.input[0].doc_string = "about x"
    model.graph.output[0].doc_string = "about y"
    model.graph.output[0].metadata_props.add(key="unit", value="m")
    model.graph.output[0].type.denotation = "IMAGE"
    for node in model.graph.node:
        node.name = f"the {node.op_type}"
        node.doc_string = f"about {node.op_type}"
        node.metadata_props.add(key="layer", value=node.op_type)
    for target in ("none", "portable"):
        graph = build_graph(optimise(model, target, None))
        written = rewrite(graph, Plan.of(graph, every_op_twice(graph))).model({"facts": {"a": 1}})
        assert (written.doc_string, written.producer_name) == ("about the model", "maker")
        assert (written.model_version, written.domain) == (7, "org.example")
        assert {p.key: p.value for p in written.metadata_props}["author"] == "somebody"
        assert metadata(written)["facts"] == '{"a": 1}'
        assert written.graph.name == "g"
        assert written.graph.doc_string == "about the graph"
        assert written.graph.input[0].doc_string == "about x"
        assert written.graph.output[0].doc_string == "about y"
        assert [p.value for p in written.graph.output[0].metadata_props] == ["m"]
        assert written.graph.output[0].type.denotation == "IMAGE"
        copies = 0
        for node in written.graph.node:
            if is_added(node.name):
                continue
            facts = {p.key: p.value for p in node.metadata_props}
            assert facts["layer"] == node.op_type
            assert node.doc_string == f"about {node.op_type}"
            assert node.name.startswith(f"the {node.op_type}")
            copies += "onnxremat.origin" in facts
        assert copies >= 2


def test_reading_a_result_gives_the_same_graph() -> None:
    graph = training_chain(3, 8, 4)
    made = rewrite(graph, Plan.of(graph, every_op_twice(graph)))
    again = build_graph(made.model())
    assert again.ops == made.graph.ops
    assert {n: t.bytes for n, t in again.tensors.items()} == {
        n: t.bytes for n, t in made.graph.tensors.items()
    }


# External weights


def external(folder: Path, name: str = "weights.bin") -> Path:
    path = folder / "in.onnx"
    onnx.save(
        to_model(training_chain(3, 32, 4)), path, save_as_external_data=True, location=name,
        size_threshold=64,
    )  # fmt: skip
    return path


def test_external_weights_in_the_same_folder_are_referred_to(tmp_path: Path) -> None:
    path = external(tmp_path)
    graph = assert_same(read_model(path), folder=tmp_path)
    before = (tmp_path / "weights.bin").stat()
    written = write_model(to_model(graph), tmp_path / "out.onnx", tmp_path)
    assert written == [tmp_path / "out.onnx"]
    assert (tmp_path / "weights.bin").stat().st_mtime_ns == before.st_mtime_ns
    assert_runs_alike(path, tmp_path / "out.onnx")


def test_external_weights_go_along_to_another_folder(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    target.mkdir()
    path = external(source)
    graph = build_graph(read_model(path), source)
    written = write_model(to_model(graph), target / "out.onnx", source)
    assert sorted(p.name for p in target.iterdir()) == ["out.onnx", "out.onnx.data"]
    assert set(written) == set(target.iterdir())
    (source / "weights.bin").unlink()  # nothing of the first folder is needed any more
    onnx.checker.check_model(str(target / "out.onnx"), full_check=True)
    external(source)
    assert_runs_alike(path, target / "out.onnx")


def test_several_external_files_and_sub_folders(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "sub").mkdir(parents=True)
    target.mkdir()
    path = external(source)
    model = onnx.load(path, load_external_data=False)
    data = (source / "weights.bin").read_bytes()
    for index, tensor in enumerate(model.graph.initializer):
        place = f"sub/part{index}" if index else "first"
        (source / place).write_bytes(data)
        next(e for e in tensor.external_data if e.key == "location").value = place
    (source / "weights.bin").unlink()
    path.write_bytes(model.SerializeToString())
    graph = assert_same(read_model(path), folder=source)
    write_model(to_model(graph), target / "out.onnx", source)
    assert_runs_alike(path, target / "out.onnx")


def assert_runs_alike(first: Path, second: Path) -> None:
    graph = build_graph(read_model(first), first.parent)
    feeds = seeded_feeds(graph)
    wanted, found = (profile(path, feeds, PLAIN_ORT).outputs for path in (first, second))
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_options_do_not_change_what_is_computed() -> None:
    graph = training_chain(4, 16, 8)
    made = rewrite(graph, Plan.of(graph, every_op_twice(graph)))
    feeds = seeded_feeds(graph)
    results = [
        profile(made.model(), feeds, replace(ONE, level=level, order=order, reuse=reuse)).outputs
        for level in ("disable", "all")
        for order in ("default", "priority")
        for reuse in (True, False)
    ]
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=1e-5)


class Fusing:
    """onnxruntime with a fusion that takes the Transpose, unless there is a pin somewhere: then it
    runs, late."""

    def __init__(self, refuses: str) -> None:
        self.refuses, self.asked = refuses, 0  # a tensor that no pin may be on

    def lasting(self, graph: Graph) -> set[str]:
        return {name for op in graph.ops for name in op.writes} - {"t"}

    def executed(self, graph: Graph) -> list[str]:
        self.asked += 1
        pinned = {op.inputs[0] for op in graph.ops if op.name.startswith("onnxremat.pin")}
        if self.refuses and pinned & {self.refuses}:
            raise ModelError("onnxruntime refuses the model")
        order = ["a", "t", "m", "y"] if "t" in pinned else ["a", "m", "t", "y"]
        makers = {op.outputs[0]: op.name for op in graph.ops}
        return [makers[name] for name in order]


@pytest.mark.parametrize(
    ("refuses", "asked", "left"), [("", 2, {"t", "y"}), ("t", 2, {"y"}), ("y", 1, set())]
)
def test_pins_on_what_pins_kept_from_being_fused(refuses: str, asked: int, left: set[str]) -> None:
    graph = graph_of("""g (float[3, 3] x, float[3, 3] w) => (float[3, 3] y) {
        a = Sin(x)
        t = Transpose(w)
        m = MatMul(a, t)
        y = MatMul(m, t)
    }""")
    runtime = Fusing(refuses)
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops]), runtime)
    pinned = {op.inputs[0] for op in made.graph.ops if op.name.startswith("onnxremat.pin")}
    assert pinned & {"t", "y"} == left
    assert runtime.asked == asked


class Asked:
    """onnxruntime as it is."""

    def lasting(self, graph: Graph) -> set[str]:
        return lasting_tensors(to_model(graph), None)

    def executed(self, graph: Graph) -> list[str]:
        return [kernel.name for kernel in run(graph, DEFAULT).kernels]


def test_what_runs_early_under_default_options_is_pinned_too() -> None:
    """Pins at the ends of walks do not do for graph attention as PyTorch exports it."""
    settings = Settings(threads=1, costs=analytic_costs)
    made = api.optimize(
        onnx.load(EXPORTED / "graph_attention-dynamo.onnx"), budget="min", settings=settings,
        options=PlanOptions(work=20, threads=1), bench_seconds=0,
    )  # fmt: skip
    assert made.facts()["order_kept_default_options"]


def test_under_default_options_dead_buffers_are_given_back(tmp_path: Path) -> None:
    """None waits for a value of its shape, which only a run tells."""
    widths = [64, 128, 256, 512, 256, 128, 64]
    body = "".join(f"p{i} = MatMul(h{i}, w{i}) h{i + 1} = Sin(p{i}) " for i in range(6))
    # Two views in a row, which onnxruntime makes one where it knows their shapes.
    views = "flat = Reshape(p2, all) twice = Reshape(flat, both) h3 = Sin(twice)"
    body = body.replace("h3 = Sin(p2)", views)
    shapes = "<int64[1] all = {131072}, int64[2] both = {256, 512}>"
    model = parse(f"g (float[256, 64] h0) => (float[256, 64] h6) {shapes} {{ {body} }}")
    for i, (rows, columns) in enumerate(pairwise(widths)):
        values = np.eye(rows, columns, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, f"w{i}"))
    graph = build_graph(model)
    plan = Plan.of(graph, every_op_twice(graph))
    made, held = rewrite(graph, plan, Asked()), rewrite(graph, plan)
    default, planned = run(made.graph, DEFAULT), run(made.graph)
    assert default.live_peak < 1.01 * planned.live_peak < 0.7 * run(held.graph, DEFAULT).live_peak
    assert predict(made.graph, ONE).live_peak == planned.live_peak
    for name, values in run(graph, DEFAULT).outputs.items():
        np.testing.assert_array_equal(default.outputs[name], values)
    again = build_graph(made.model())  # the file says every size
    assert {name: t.bytes for name, t in again.tensors.items()} == {
        name: t.bytes for name, t in made.graph.tensors.items()
    }
    assert build_graph(restored(made.model())).ops == graph.ops
    file = tmp_path / "out.onnx"
    onnx.save(made.model(), file)
    opened = onnx.ModelProto.FromString(read_light(file, PREFIX).content)  # as `load` opens it
    assert SHOWN in str(made.model().graph.node)
    assert SHOWN not in str([*opened.graph.node, *(w.name for w in opened.graph.initializer)])
    onnx.load_external_data_for_model(opened, str(tmp_path))
    for name, values in profile(opened, seeded_feeds(graph), ONE).outputs.items():
        np.testing.assert_array_equal(planned.outputs[name], values)


def test_bodies_that_read_a_copy_are_restored() -> None:
    graph = graph_of("""g (float[4] x, bool c) => (float[4] y, float[4] z) {
        a = Sin(x)
        z = Cos(a)
        y = If(c) <
            then_branch = yes () => (float[4] p) { p = Neg(a) },
            else_branch = no () => (float[4] q) { q = Abs(a) }
        >
    }""")
    one, two, branch = (op.name for op in graph.ops)
    made = rewrite(graph, Plan.of(graph, [one, two, one, branch]))
    assert any(op.origin == one for op in made.graph.ops)
    again = build_graph(restored(made.model()))
    assert [op.name for op in again.ops] == [one, two, branch]
    assert again.ops[2].captures == ("a",)


def walk(before: list[list[int]], done: int, end: int) -> list[int]:
    """Steps from ``done`` on in the order in which onnxruntime's depth-first walk leaves them."""
    stack, seen, left = [(end, False)], set(), []
    while stack:
        step, leaving = stack.pop()
        if leaving:
            left.append(step)
        elif step not in seen:
            seen.add(step)
            stack += [(step, True), *((p, False) for p in before[step] if p >= done)]
    return left


@pytest.mark.parametrize("seed", range(3))
def test_pins_stand_at_the_ends_of_the_longest_walks_in_listed_order(seed: int) -> None:
    graph = build_graph(bind(random_dag(seed, 60)))
    start, before = 0, graph.predecessors()
    for end in stretches(graph):
        rest = range(start, len(before))
        stands = [e for e in rest if walk(before, start, e) == [*range(start, e + 1)]]
        assert end == max(stands)
        start = end + 1
    assert start == len(before)


@pytest.mark.parametrize("name", ["a__r1", "onnxremat.gate0"])
def test_names_in_bodies_are_not_taken(name: str) -> None:
    """As of planned models that became the bodies of an If: onnxruntime refuses a name twice."""
    model = parse("""g (float[4] x, bool c) => (float[4] y) {
        a = Sin(x)  b = Cos(a)
        p = If(c) <then_branch = t () => (float[4] q) { inner = Neg(a)  q = Exp(inner) },
            else_branch = e () => (float[4] q) { q = Neg(a) }>
        y = Sum(p, b) }""")
    body = next(each.g for each in model.graph.node[2].attribute if each.name == "then_branch")
    body.node[0].output[0] = body.node[1].input[0] = name
    graph = build_graph(model)
    first, *rest = (op.name for op in graph.ops)
    made = rewrite(graph, Plan.of(graph, [first, rest[0], first, *rest[1:]])).graph
    assert np.array_equal(run(made).outputs["y"], run(graph).outputs["y"])
