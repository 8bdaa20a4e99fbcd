"""What `load` opens: the planned model with its planned bytes, from a file that may change."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import models
import onnxremat
from onnxremat.errors import ModelError, UsageError
from onnxremat.grad import differentiate
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.wire import read_light
from onnxremat.memory.mapped import can_own
from onnxremat.memory.native import missing
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import profile
from onnxremat.ort.session import TUNED
from onnxremat.rewrite.emit import rewrite, set_metadata
from onnxremat.rewrite.pins import PREFIX
from onnxremat.schedule.plan import Plan
from tests.toolbox import ONE, training_chain


@pytest.fixture(scope="module")
def graph() -> Graph:
    return training_chain(4, width=160, batch=64)


@pytest.fixture
def file(graph: Graph, tmp_path: Path) -> Path:
    """A planned model with inline weights of 100 KiB each, read by MatMuls and by others."""
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops])).model()
    path = tmp_path / "out.onnx"
    onnx.save(made, path)
    return path


@pytest.fixture(scope="module")
def feeds(graph: Graph) -> dict[str, np.ndarray]:
    return seeded_feeds(graph)


@pytest.fixture(scope="module")
def expected(graph: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(profile(to_model(graph), feeds, TUNED).outputs.values())


def right(session: Any, feeds: dict[str, np.ndarray], expected: list[np.ndarray]) -> bool:
    found = session.run(None, feeds)
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_runs_the_plan(file: Path, feeds: dict, expected: list) -> None:
    session = onnxremat.load(file)
    for _ in range(3):
        assert right(session, feeds, expected)
    assert session.describe().startswith("memory: ")
    assert session.method == "slab" or missing()


@pytest.mark.parametrize("how", ["overwritten", "removed", "emptied"])
def test_the_file_may_change_afterwards(file: Path, feeds: dict, expected: list, how: str) -> None:
    session = onnxremat.load(str(file))
    if how == "removed":
        file.unlink()
    else:
        size = file.stat().st_size
        with file.open("r+b") as opened:  # the same file, not another one under its name
            if how == "emptied":
                opened.truncate(0)
            else:
                opened.write(b"\xff" * size)
    for _ in range(2):
        assert right(session, feeds, expected)
    del session
    gc.collect()


@pytest.mark.skipif(not can_own(), reason="no /proc here")
def test_nothing_of_the_file_stays_mapped(file: Path, feeds: dict, expected: list) -> None:
    session = onnxremat.load(file)
    assert right(session, feeds, expected)
    assert str(file.resolve()) not in Path("/proc/self/maps").read_text()


def test_from_anywhere(
    file: Path, feeds: dict, expected: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    link = file.with_name("link.onnx")
    link.symlink_to(file.name)
    (file.parent / "sub").mkdir()
    far = file.parent / "sub" / "far.onnx"
    far.symlink_to(file)
    for path in (file.name, Path(file.name), link, far, "sub/far.onnx"):
        assert right(onnxremat.load(path), feeds, expected)


def test_weights_in_other_files(file: Path, feeds: dict, expected: list) -> None:
    model = onnx.load(file)
    onnx.save(model, file, save_as_external_data=True, location="w.bin", size_threshold=0)
    session = onnxremat.load(file)
    assert right(session, feeds, expected)
    link = file.parent / "sub"
    link.mkdir()
    (link / "m.onnx").symlink_to(file)
    (link / "w.bin").symlink_to(file.parent / "w.bin")
    with_links = None
    try:
        with_links = onnxremat.load(link / "m.onnx")
    except ModelError:  # onnxruntime follows no link out of the folder
        return
    assert right(with_links, feeds, expected)


def test_other_options_keep_the_pins(file: Path, feeds: dict, expected: list) -> None:
    names = [node.name for node in onnx.load(file).graph.node]
    assert any(name.startswith(PREFIX) for name in names)
    for changes in ({"arena": False}, {"order": "default"}, {"level": "all"}, {"threads": 1}):
        session = onnxremat.load(file, **changes)
        found = session.run(None, feeds)
        assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(found, expected, strict=True))
        if changes == {"arena": False}:
            assert session.method == "arena"
            assert "asked of the C library" in session.describe()


def test_refusals(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        onnxremat.load(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        onnxremat.load(tmp_path)
    with pytest.raises(TypeError, match="tight"):
        onnxremat.load(file, tight=True)
    model = onnx.load(file)
    kept = [e for e in model.metadata_props if e.key != "onnxremat.plan"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, tmp_path / "plain.onnx")
    with pytest.raises(UsageError, match="carries no plan"):
        onnxremat.load(tmp_path / "plain.onnx")
    set_metadata(model, {"plan": "x"})
    model.graph.node[0].op_type = "NoSuchOp"
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match="onnxruntime refuses the model"):
        onnxremat.load(tmp_path / "odd.onnx")


@pytest.mark.parametrize("name", ["unet", "vit"])
def test_without_pins_the_same_order_and_bytes(name: str, tmp_path: Path) -> None:
    sizes = {"unet": {"batch": 1, "size": 64, "width": 8}, "vit": {"batch": 1, "layers": 2}}
    graph = build_graph(differentiate(models.build(name, **sizes[name])))
    made = rewrite(graph, Plan.of(graph, [op.name for op in graph.ops])).model()
    path = tmp_path / "out.onnx"
    onnx.save(made, path)
    light = onnx.ModelProto.FromString(read_light(path, PREFIX).content)
    assert len(light.graph.node) < len(made.graph.node)
    feeds = seeded_feeds(graph)
    whole, less = profile(path, feeds, ONE), profile(light, feeds, ONE, folder=tmp_path)
    steps = [[k.name for k in f.kernels if not k.name.startswith(PREFIX)] for f in (whole, less)]
    assert steps[0] == steps[1]
    pins = len(made.graph.node) - len(light.graph.node)
    assert whole.live_peak - 8 * pins <= less.live_peak <= whole.live_peak
