"""Models read without their weights: the same model, and nothing of it in memory twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import models
from onnxremat.errors import ModelError
from onnxremat.graph.onnx_io import read_model
from onnxremat.graph.wire import LARGE, read_light
from tests.toolbox import parse


def with_weights(folder: Path, **weights: np.ndarray) -> Path:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.metadata_props.add(key="onnxremat.note", value="kept")
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def test_big_weights_stay_in_the_file(tmp_path: Path) -> None:
    values = {
        "big": np.random.default_rng(0).standard_normal((300, 100)).astype(np.float32),
        "half": np.arange(40000, dtype=np.float16).reshape(4, -1),
        "whole": np.arange(20000, dtype=np.int64),
        "small": np.ones((10, 10), np.float32),
    }
    path = with_weights(tmp_path, **values)
    light = read_light(path)
    assert light.weights == sum(v.nbytes for v in values.values() if v.nbytes >= LARGE)
    assert len(light.content) < 3000
    assert [entry.value for entry in light.head.metadata_props] == ["kept"]
    assert not light.elsewhere
    model = onnx.ModelProto.FromString(light.content)
    left = [t.name for t in model.graph.initializer if t.data_location == 1]
    assert left == ["big", "half", "whole"]
    onnx.load_external_data_for_model(model, str(tmp_path))
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")
        del tensor.external_data[:]
    assert model == onnx.load(path)


@pytest.mark.parametrize("name", ["lenet", "bert", "unet", "gpt2"])
def test_any_model_runs_the_same(name: str, tmp_path: Path) -> None:
    from onnxremat.ort.feeds import seeded_feeds
    from onnxremat.ort.infer import build_graph

    path = tmp_path / "m.onnx"
    onnx.save(models.build(name, **({} if name == "lenet" else {"batch": 1})), path)
    feeds = seeded_feeds(build_graph(onnx.load(path)))
    options = ort.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    light = ort.InferenceSession(read_light(path).content, options)
    whole = ort.InferenceSession(str(path))
    for a, b in zip(light.run(None, feeds), whole.run(None, feeds), strict=True):
        assert np.array_equal(a, b)


def test_weights_in_other_files_are_checked(tmp_path: Path) -> None:
    path = with_weights(tmp_path, big=np.zeros((300, 100), np.float32))
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    light = read_light(path)
    assert light.elsewhere
    assert light.weights == 0
    assert onnx.ModelProto.FromString(light.content) == onnx.load(path, load_external_data=False)
    (tmp_path / "w.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match="truncated"):
        read_light(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match="missing"):
        read_light(path)


def test_nodes_left_out_are_those_nobody_misses(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = parse("""g (float[2,3] x) => (float[2,3] y, int64 n) {
        a = Relu(x)
        y = Neg(a)
        p0 = Size(a)
        p1 = Size(y)
        n = Size(x)
        top, at = TopK<axis=1>(x, k)
        p2 = Size(at)
        p3 = Size(a)
        q = Neg(p3)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "k"))
    for node in model.graph.node:
        node.name = ("pin." if node.op_type == "Size" else "own.") + node.output[0]
    onnx.save(model, path)
    light = onnx.ModelProto.FromString(read_light(path, "pin.").content)
    # n leaves the graph, nobody else reads what p2 reads, somebody reads what p3 makes.
    left = [n.output[0] for n in light.graph.node if n.op_type == "Size"]
    assert left == ["n", "p2", "p3"]
    whole = onnx.ModelProto.FromString(read_light(path).content)
    assert [n.name for n in whole.graph.node] == [n.name for n in model.graph.node]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("sound")
    return with_weights(folder, big=np.zeros((300, 100), np.float32)).read_bytes()


@given(cut=st.integers(0, 1 << 17), noise=st.binary(max_size=8), at=st.integers(0, 400))
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_refused_or_read_as_onnx_reads_them(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, cut: int, noise: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    content = bytearray(sound[: max(cut, 1)] if cut < len(sound) else sound)
    content[at : at + len(noise)] = noise
    path.write_bytes(content)
    try:
        read_light(path)
    except ModelError:
        return
    finally:
        shutil.rmtree(path.parent)


def test_errors_are_those_of_reading(tmp_path: Path) -> None:
    for name, content in {
        "empty": b"",
        "text": b"hello, this is no model",
        "tail": b"\x3a\x7f",
    }.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        with pytest.raises(ModelError) as ours:
            read_light(path)
        with pytest.raises(ModelError) as theirs:
            read_model(path)
        assert str(ours.value) == str(theirs.value)
