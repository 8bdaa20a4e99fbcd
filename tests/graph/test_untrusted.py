"""Files that ask for what they must not get: each is refused before anything is done with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat import limits, plain_json
from onnxremat.errors import ExhaustedError, ModelError, UsageError
from onnxremat.grad import differentiate, training_of
from onnxremat.graph import atomic as files
from onnxremat.graph import light
from onnxremat.graph.atomic import atomic
from onnxremat.graph.external import read_in
from onnxremat.graph.onnx_io import read_model, to_model, to_ops
from onnxremat.graph.temporary import reason
from onnxremat.graph.tensor_files import read_tensors
from onnxremat.graph.weights import APART
from onnxremat.ort import profile
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.profile import named_outputs
from onnxremat.ort.trips import require_few_trips
from onnxremat.pipeline.batch_size import set_batch
from onnxremat.pipeline.original.source import read_source
from tests.toolbox import parse

WEIGHTS = np.arange(64, dtype=np.float32).reshape(8, 8)


# External weights


def with_external(location: str, folder: Path, **entries: str) -> Path:
    """A model whose weight lies there, as it says."""
    made = parse("g (float[4, 8] x) => (float[4, 8] y) { y = MatMul(x, w) }")
    weight = made.graph.initializer.add(
        name="w", data_type=1, dims=[8, 8], data_location=TensorProto.EXTERNAL
    )
    for key, value in ({"location": location, "length": "256"} | entries).items():
        weight.external_data.add(key=key, value=value)
    path = folder / "in.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder for models; beside it lies a file that is no model's business."""
    (tmp_path / "secret").write_bytes(WEIGHTS.tobytes())
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "real").write_bytes(WEIGHTS.tobytes())
    (folder / "out").symlink_to("../secret")
    (folder / "in").symlink_to("real")
    return folder


@pytest.mark.parametrize("location", ["../secret", "out", "./../models/../secret"])
def test_weights_outside_of_the_folder_are_not_read(location: str, outside: Path) -> None:
    path = with_external(location, outside)
    with pytest.raises(ModelError, match="outside of the model's folder"):
        read_model(path)
    tensor = onnx.load(path, load_external_data=False).graph.initializer[0]
    with pytest.raises(ModelError, match="outside"):  # whoever reads it later
        read_in(tensor, outside)
    assert not tensor.raw_data


def test_an_absolute_location_is_refused(outside: Path) -> None:
    for place in (outside.parent / "secret", outside / "real"):
        with pytest.raises(ModelError, match="outside of the model's folder"):
            read_model(with_external(str(place), outside))


def _external(tensor: TensorProto, location: str) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def _of_body(location: str) -> onnx.ModelProto:
    """A model of whose two bodies one has a weight that lies there."""
    made = parse("""g (float[8, 8] x, bool c) => (float[8, 8] y) {
        y = If(c) <then_branch = a () => (float[8, 8] a) { a = MatMul(x, w) },
                   else_branch = b () => (float[8, 8] b) { b = Sin(x) }> }""")
    (body,) = (e.g for e in made.graph.node[0].attribute if e.name == "then_branch")
    body.initializer.append(numpy_helper.from_array(WEIGHTS, "w"))
    _external(body.initializer[0], location)
    return made


def _sparse(location: str) -> onnx.ModelProto:
    made = parse("g (float[8, 8] x) => (float[8, 8] y) { y = MatMul(x, w) }")
    sparse = made.graph.sparse_initializer.add(dims=[8, 8])
    sparse.values.CopyFrom(numpy_helper.from_array(WEIGHTS.reshape(-1), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(64)))
    _external(sparse.values, location)
    return made


@pytest.mark.parametrize("made", [_of_body, _sparse])
def test_weights_of_bodies_and_sparse_ones_obey_the_same_rules(
    made: Callable[[str], onnx.ModelProto], outside: Path
) -> None:
    """And are held by the model: what is written into another folder finds them."""
    path = outside / "in.onnx"
    for location, words in (("../secret", "outside"), ("out", "outside"), ("gone", "missing")):
        path.write_bytes(made(location).SerializeToString())
        with pytest.raises(ModelError, match=f"external weights (are|lie) {words}"):
            read_model(path)
    path.write_bytes(made("real").SerializeToString())
    (outside / "elsewhere").mkdir()
    set_batch(path, outside / "elsewhere" / "out.onnx", 4)
    rows = np.ones((4, 8), np.float32)
    model = onnx.load(outside / "elsewhere" / "out.onnx")
    feeds = {"x": rows, "c": np.array(True)}
    given = {value.name: feeds[value.name] for value in model.graph.input}
    found = named_outputs(model, given, outside / "elsewhere")["y"]
    np.testing.assert_array_equal(found, rows @ WEIGHTS)


@pytest.mark.parametrize("location", ["", "gone", "a" * 5000, "a\0b", "real/x", "."])
def test_names_that_are_no_file(location: str, outside: Path) -> None:
    with pytest.raises(ModelError, match="external weights are missing") as caught:
        read_model(with_external(location, outside))
    assert len(str(caught.value)) < 600


def test_a_link_within_the_folder_is_followed(outside: Path) -> None:
    path = with_external("in", outside)
    graph = build_graph(read_model(path), outside)
    feeds = {"x": np.ones((4, 8), np.float32)}
    np.testing.assert_array_equal(
        named_outputs(to_model(graph), feeds, outside)["y"], feeds["x"] @ WEIGHTS
    )


@pytest.mark.parametrize(
    "entries", [{"length": "8"}, {"length": "260"}, {"offset": "9" * 30}, {"length": "٣"}]
)
def test_sizes_that_do_not_fit(entries: dict[str, str], outside: Path) -> None:
    with pytest.raises(ModelError, match="weight 'w'"):
        read_model(with_external("real", outside, **entries))


def test_a_weight_without_a_length_is_as_long_as_it_is(outside: Path) -> None:
    (outside / "real").write_bytes(b"\1" * 16 + WEIGHTS.tobytes() + b"\1" * 64)
    path = with_external("real", outside, offset="16", length="")
    model = onnx.load(path, load_external_data=False)
    (entry,) = (e for e in model.graph.initializer[0].external_data if e.key == "length")
    model.graph.initializer[0].external_data.remove(entry)
    path.write_bytes(model.SerializeToString())
    weight = read_model(path).graph.initializer[0]
    np.testing.assert_array_equal(numpy_helper.to_array(weight, str(outside)), WEIGHTS)
    assert differentiate(read_model(path), folder=outside).graph.node


# Weights inside


@pytest.mark.parametrize(
    "change", [{"dims": [8, 9]}, {"dims": [-8, -8]}, {"raw_data": b"123"}, {"data_type": 11}]
)
def test_weights_of_other_sizes_than_they_say(change: dict) -> None:
    made = parse("g (float[4, 8] x) => (float[4, 8] y) { y = MatMul(x, w) }")
    weight = numpy_helper.from_array(WEIGHTS, "w")
    for key, value in change.items():
        if key == "dims":
            weight.dims[:] = value
        else:
            setattr(weight, key, value)
    made.graph.initializer.append(weight)
    with pytest.raises(ModelError, match="weight 'w' is damaged"):
        bind(made)


A_CONSTANT = "g (float[4, 8] x) => (float[4, 8] y) { w = Constant() y = MatMul(x, w) }"


@pytest.mark.parametrize("change", ["short", "listed", "segment"])
@pytest.mark.parametrize("inside", [True, False], ids=["weight", "constant"])
def test_values_that_are_no_whole_tensor(change: str, inside: bool) -> None:
    value = numpy_helper.from_array(WEIGHTS, "w")
    if change == "short":
        value.raw_data = value.raw_data[:-8]
    elif change == "listed":
        value = helper.make_tensor("w", 1, [8, 8], WEIGHTS.ravel())
        del value.float_data[60:]
    else:
        value.segment.end = 8
    if inside:
        made = parse("g (float[4, 8] x) => (float[4, 8] y) { y = MatMul(x, w) }")
        made.graph.initializer.append(value)
    else:
        made = parse(A_CONSTANT)
        made.graph.node[0].attribute.append(helper.make_attribute("value", value))
    for look in (bind, differentiate):
        with pytest.raises(ModelError, match=r"is damaged|is a segment"):
            look(made)


@pytest.mark.parametrize("location", ["real", "../secret", "gone"])
def test_a_value_of_a_constant_that_lies_in_a_file(location: str, outside: Path) -> None:
    made = parse(A_CONSTANT)
    value = onnx.TensorProto(name="w", data_type=1, dims=[8, 8], data_location=1)
    value.external_data.add(key="location", value=location)
    made.graph.node[0].attribute.append(helper.make_attribute("value", value))
    path = outside / "in.onnx"
    path.write_bytes(made.SerializeToString())
    if location != "real":
        with pytest.raises(ModelError, match="external weights"):
            read_model(path)
        return
    feeds = {"x": np.ones((4, 8), np.float32)}
    found = named_outputs(read_model(path), feeds, None)["y"]  # whatever folder one is in
    np.testing.assert_array_equal(found, feeds["x"] @ WEIGHTS)


def sparse(places: np.ndarray, dims: tuple[int, ...] = (8, 8)) -> onnx.ModelProto:
    made = parse("g (float[4, 8] x) => (float[4, 8] y) { y = MatMul(x, w) }")
    weight = made.graph.sparse_initializer.add(dims=dims)
    weight.values.CopyFrom(numpy_helper.from_array(np.ones(len(places), np.float32), "w"))
    weight.indices.CopyFrom(numpy_helper.from_array(places, "w_at"))
    return made


@pytest.mark.parametrize("places", [np.array([0, 9, 63]), np.array([[0, 0], [1, 1], [7, 7]])])
def test_sparse_weights_are_dense_ones(places: np.ndarray) -> None:
    graph = build_graph(bind(sparse(places)))
    dense = np.zeros((8, 8), np.float32)
    dense[[0, 1, 7], [0, 1, 7]] = 1
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    assert graph.weight_bytes == 256
    np.testing.assert_array_equal(
        named_outputs(to_model(graph), feeds, None)["y"], feeds["x"] @ dense
    )


def test_sparse_weights_that_are_none() -> None:
    for places in (np.array([64]), np.array([-1]), np.array([[8, 0]])):
        with pytest.raises(ModelError, match="sparse weight 'w' is damaged"):
            bind(sparse(places))
    with pytest.raises(ModelError, match="too many bytes of sparse weight 'w'"):
        bind(sparse(np.array([0]), (1 << 20, 1 << 20)))


@pytest.mark.parametrize(
    "shape",
    [
        "4611686018427387904", "2147483648, 2147483648", "1073741824, 65536",
        "0, 4611686018427387904",  # of no bytes, but numpy makes no such array
    ],
)  # fmt: skip
def test_tensors_that_no_machine_holds(shape: str) -> None:
    with pytest.raises(ModelError, match="too many bytes of tensor 'x'"):
        build_graph(bind(parse(f"g (float[{shape}] x) => (y) {{ y = Sin(x) }}")))


# Functions


def calling(bodies: dict[str, list[str]]) -> onnx.ModelProto:
    """Functions by name that call others one after the other; ``Sin`` is the operator."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]

    def nodes(names: list[str], source: str, target: str) -> list[onnx.NodeProto]:
        values = [source, *(f"v{i}" for i in range(len(names) - 1)), target]
        return [
            helper.make_node(name, [a], [b], domain="" if name == "Sin" else "my")
            for name, a, b in zip(names, values, values[1:], strict=False)
        ]

    shape = (TensorProto.FLOAT, [4])
    graph = helper.make_graph(
        nodes(["F0"], "x", "y"), "g",
        [helper.make_tensor_value_info("x", *shape)], [helper.make_tensor_value_info("y", *shape)],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    for name, body in bodies.items():
        made.functions.append(
            helper.make_function("my", name, ["a"], ["b"], nodes(body, "a", "b"), opsets)
        )
    return made


def test_functions_are_written_out() -> None:
    made = inline_functions(calling({"F0": ["F1", "F1"], "F1": ["Sin", "Sin", "Sin"]}))
    assert [node.op_type for node in made.graph.node] == ["Sin"] * 6


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ({"F0": ["F0"]}, "'F0' .* calls itself"),
        ({"F0": ["F1"], "F1": ["Sin", "F0"]}, "calls itself"),
        (
            {f"F{i}": [f"F{i + 1}"] * 2 for i in range(400)} | {"F400": ["Sin"]},
            f"in a row: {limits.NESTING + 1}",
        ),
        (
            {f"F{i}": [f"F{i + 1}"] * 2 for i in range(22)} | {"F22": ["Sin"]},
            f"too many nodes .* {2**22}",
        ),
        (
            {f"F{i}": [f"F{i + 1}"] * 9 for i in range(70)} | {"F70": ["Sin"]},
            r"more than 10\^18",
        ),
    ],
    ids=["itself", "in a ring", "a long row", "doubling", "more than there are atoms"],
)
def test_functions_that_never_end(bodies: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        inline_functions(calling(bodies))


def test_graphs_of_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = parse("g (float[8] x) => (float[8] y) { a = Sin(x)  b = Sin(a)  y = Sin(b) }")
    assert inline_functions(made) is made
    monkeypatch.setattr("onnxremat.ort.functions.NODES", 2)
    with pytest.raises(ModelError, match=r"too many nodes .*: 3"):
        inline_functions(made)


# Order and names


def test_a_long_graph_listed_backwards_is_sorted() -> None:
    """In a time that grows with its length, not with its square: 5,000 ops."""
    count = 5_000
    made = onnx.ModelProto(ir_version=9)
    made.graph.input.append(helper.make_tensor_value_info("v0", 1, [1]))
    made.graph.output.append(helper.make_tensor_value_info(f"v{count}", 1, [1]))
    made.graph.node.extend(
        helper.make_node("Sin", [f"v{i}"], [f"v{i + 1}"], name="same")
        for i in reversed(range(count))
    )
    ops = to_ops(made)
    assert [op.outputs[0] for op in ops] == [f"v{i + 1}" for i in range(count)]
    assert len({op.name for op in ops}) == count


NAMES = ["a,b", 'q"uo\\te', "new\nline,1,2,3", "tab\tand\x01\r\n", "#9,9,9,9,9", "ünï"]


def test_any_name_of_a_node_is_measured(tmp_path: Path) -> None:
    """Names go into the files of a profile without any quoting."""
    steps = " ".join(f"v{i} = Softmax(v{i - 1})" for i in range(1, len(NAMES) + 1))
    made = parse(f"g (float[4, 64] v0) => (float[4, 64] v{len(NAMES)}) {{ {steps} }}")
    for node, name in zip(made.graph.node, NAMES, strict=True):
        node.name = name
    graph = build_graph(bind(made))
    assert all(op.name.isprintable() for op in graph.ops)
    feeds = {"v0": np.ones((4, 64), np.float32)}
    for model in (to_model(graph), made):
        found = profile.profile(model, feeds, profile.DEFAULT)
        assert [k.op_type for k in found.kernels] == ["Softmax"] * len(NAMES)
    assert [k.name for k in profile.profile(to_model(graph), feeds, profile.DEFAULT).kernels] == [
        op.name for op in graph.ops
    ]


# Readers of other files


def test_json_is_read_only_so_deep() -> None:
    def nested(levels: int) -> str:
        return "[" * levels + "]" * levels

    assert plain_json.loads('{"a": [1, {"b": "[[[["}]}') == {"a": [1, {"b": "[[[["}]}
    plain_json.loads(nested(limits.NESTING))
    for levels in (limits.NESTING + 1, 900, 200_000):
        for text in (nested(levels), '{"a":' * levels + "1" + "}" * levels):
            with pytest.raises(ValueError, match="nested deeper"):
                plain_json.loads(text)
    with pytest.raises(ValueError, match="Expecting"):
        plain_json.loads("[")


def tensor_header(shape: str, offsets: str, kind: str = '"F32"') -> str:
    return f'{{"a": {{"dtype": {kind}, "shape": {shape}, "data_offsets": {offsets}}}}}'


@pytest.mark.parametrize(
    "header",
    [
        "[" * 200_000, "[]", "{}x", '{"a": 1}', '{"__metadata__": {"a": 1}}',
        tensor_header("[-1]", "[0, 8]"), tensor_header("[1e3]", "[0, 8]"),
        tensor_header("[2]", "[-8, 8]"), tensor_header("[3]", "[0, 8]"),
        tensor_header(f"[{2**100}]", "[0, 8]"), tensor_header("[true, 2]", "[0, 8]"),
        tensor_header("2", "[0, 8]"), tensor_header("[2]", "[0]"), tensor_header("[2]", "8"),
        tensor_header("[2]", "[0, 8]", '["F32"]'),
    ],
)  # fmt: skip
def test_damaged_safetensors(header: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    with pytest.raises(ModelError, match="cannot read the tensors"):
        read_tensors(path)


# Writing


def test_a_link_as_output_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there/file")
    for text in ("new", "again"):  # to nothing yet, then to a file
        with atomic(link) as temporary:
            temporary.write_text(text)
        assert link.is_symlink()
        assert (tmp_path / "there/file").read_text() == text
    assert os.listdir(tmp_path / "there") == ["file"]  # noqa: PTH208
    round_trip = tmp_path / "round"
    round_trip.symlink_to("round")
    with pytest.raises(UsageError, match="cannot write"), atomic(round_trip):
        pass


def test_a_full_temporary_folder_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where something cannot be read that was just written, whatever its reader says."""
    error = ValueError("broken")
    assert reason(error) is error
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("U", (), {"free": 0})())
    said = reason(error)
    assert isinstance(said, ExhaustedError)
    assert "temporary files is full" in str(said)
    assert "TMPDIR" in str(said)
    cut = tmp_path / "profile.json"
    cut.write_text('[{"cat": "No')
    with pytest.raises(ExhaustedError, match="cut short"):
        profile._events(cut)
    # The disk has room: it is this process that may not use it.
    monkeypatch.setattr("onnxremat.graph.temporary._largest_file", lambda: 4096)
    with pytest.raises(ExhaustedError, match="no file of more than 4096 bytes") as limited:
        profile._events(cut)
    assert limited.value.hint == "raise that limit (ulimit -f)"


def test_loops_that_no_profile_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before the first run; bodies in bodies multiply."""
    body = """b (int64 i, bool on, float[4] s) => (bool o, float[4] t) {
        o = Identity(on)  t = Sin(s) }"""
    made = parse(f"""g (float[4] x) => (float[4] y) <int64 n = {{5}}, bool c = {{1}}> {{
        y = Loop(n, c, x) <body = {body}> }}""")
    inner = made.graph.node[0].attribute[0].g
    monkeypatch.setattr("onnxremat.ort.trips.BODY_RUNS", 15)
    require_few_trips(made)
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "c", "s"], ["t"], body=inner),
         helper.make_node("Identity", ["on"], ["o"])],
        "outer", inner.input, inner.output,
    )  # fmt: skip
    made.graph.node[0].attribute[0].g.CopyFrom(graph)
    with pytest.raises(ModelError, match=rf"too many runs .*: {5 * (1 + 2 + 5 * (1 + 2))}"):
        profile.profile(made, {"x": np.ones(4, np.float32)}, profile.DEFAULT)


@pytest.mark.parametrize(("shape", "axes"), [("9, 2", ""), ("2, 9", ", scan_input_axes = [-1]")])
def test_scans_of_more_than_a_profile_holds(
    shape: str, axes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """b (float s, float[2] e) => (float t, float[2] u) { t = Sin(s)  u = Add(e, t) }"""
    made = parse(f"""g (float[{shape}] x) => (float z, float[9, 2] y) <float c = {{1}}> {{
        z, y = Scan <body = {body}, num_scan_inputs = 1{axes}> (c, x) }}""")
    monkeypatch.setattr("onnxremat.ort.trips.BODY_RUNS", 27)
    require_few_trips(made)
    monkeypatch.setattr("onnxremat.ort.trips.BODY_RUNS", 26)
    with pytest.raises(ModelError, match=r"too many runs .*: 27"):
        require_few_trips(made)


def test_a_while_loop_is_no_loop_of_all_its_trips() -> None:
    """Exporters write a while loop with the largest number there is, and a condition."""

    def loop(condition: str) -> onnx.ModelProto:
        body = f"""b (int64 i, bool on, float[4] s) => (bool o, float[4] t) <float f = {{9}}> {{
            t = Sin(s)  r = ReduceSum<keepdims = 0>(t)  p = Less(r, f)
            o = Identity({condition}) }}"""
        return parse(f"""g (float[4] x) => (float[4] y)
            <int64 n = {{{2**63 - 1}}}, bool c = {{1}}> {{
            y = Loop(n, c, x) <body = {body}> }}""")

    require_few_trips(loop("p"))
    with pytest.raises(ModelError, match="too many runs"):
        require_few_trips(loop("on"))


@pytest.mark.parametrize(
    ("begins", "goes", "ends"),
    [
        ("c", "on", False),
        ("", "on", False),
        ("begin", "c", False),  # settled outside of it
        ("c", "yes", False),
        ("c", "no", True),
        ("never", "on", True),
        ("c", "p", True),
        ("c", "carried", True),
    ],
)
def test_a_loop_without_a_count_and_with_one_condition_never_ends(
    begins: str, goes: str, ends: bool
) -> None:
    body = f"""b (int64 i, bool on, bool carried, float[4] s)
            => (bool o, bool carry, float[4] t)
            <bool yes = {{1}}, bool no = {{0}}, float f = {{9}}> {{
        t = Sin(s)  r = ReduceSum<keepdims = 0>(t)  p = Less(r, f)  carry = Not(carried)
        same = Identity({goes})  o = Identity(same) }}"""
    made = parse(f"""g (float[4] x, bool begin) => (float[4] y)
        <bool c = {{1}}, bool never = {{0}}> {{
        z, y = Loop("", {begins or '""'}, c, x) <body = {body}> }}""")
    if ends:
        require_few_trips(made)
    else:
        with pytest.raises(ModelError, match="the Loop 'z' never ends"):
            require_few_trips(made)


# Attributes


def test_an_attribute_whose_value_is_of_another_type_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime refuses it, and who reads it without asking it would not know what it is."""
    made = parse(
        "g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { y = Gemm <alpha = 2.0> (x, w) }"
    )
    made.graph.node[0].attribute[0].type = onnx.AttributeProto.SPARSE_TENSOR
    path = tmp_path / "in.onnx"
    path.write_bytes(made.SerializeToString())
    large = tmp_path / "large.onnx"  # read without its weights
    monkeypatch.setattr(light, "LIGHT", APART)
    made.graph.initializer.append(numpy_helper.from_array(np.ones(APART, np.uint8), "u"))
    large.write_bytes(made.SerializeToString())
    for read, source in ((read_model, path), (read_source, large), (read_source, made)):
        with pytest.raises(ModelError, match="attribute 'alpha' of Gemm"):
            read(source)


# Files that are being written


def test_an_interrupt_as_a_file_is_begun_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create = files._create

    def interrupted(temporary: Path, path: Path) -> None:
        create(temporary, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_create", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic(tmp_path / "out.onnx"):
        pass
    assert not list(tmp_path.iterdir())


def test_sparse_constants_are_dense_ones() -> None:
    """Elsewhere than as a result, which may be sparse."""
    made = sparse(np.array([[0, 1], [7, 7]]))
    weight = made.graph.sparse_initializer[0]
    node = helper.make_node("Constant", [], ["w"], sparse_value=weight)
    del made.graph.sparse_initializer[:]
    made.graph.node.insert(0, node)
    bound = bind(made)
    (found,) = (helper.get_attribute_value(each) for each in bound.graph.node[0].attribute)
    assert numpy_helper.to_array(found)[7, 7] == numpy_helper.to_array(weight.values)[1]
    step = differentiate(bound, loss="mse", trainable=["x"])
    assert [row.name for row in training_of(step).weights] == ["w"]
    result = helper.make_sparse_tensor_value_info("w", TensorProto.FLOAT, [8, 8])
    made.graph.output.append(result)
    kept = bind(made).graph.node[0].attribute[0]
    assert kept.type == onnx.AttributeProto.SPARSE_TENSOR
    made.graph.node[0].attribute[0].name = "value"
    assert training_of(differentiate(made, loss="mse", trainable=["x"])).prediction == "y"
