"""Big weights are kept apart: the model without them is small, and comes out as it was."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
import onnxremat
from onnxremat.errors import ExhaustedError, ModelError, UsageError
from onnxremat.graph import light, onnx_io, temporary, weights
from onnxremat.graph.filling import Filling, filled
from onnxremat.graph.light import read_light, read_structure
from onnxremat.graph.onnx_io import files_of, read_model, write_model
from onnxremat.graph.weights import WeightFolder, pieces, place, set_apart
from onnxremat.graph.wire import scanned
from onnxremat.pipeline.batch_size import set_batch
from tests.toolbox import parse

BIG = 4096


@pytest.fixture(autouse=True)
def _every_weight_is_big(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (weights, light):
        monkeypatch.setattr(module, "APART", BIG)
        monkeypatch.setattr(module, "LIGHT", BIG)


def _model() -> onnx.ModelProto:
    """With weights that say more than their bytes, and some that hold numbers as such."""
    model = models.build("mlp", batch=4, width=64, layers=3)
    model.graph.doc_string, model.doc_string = "graph", "model"
    tensors = model.graph.initializer
    tensors[0].doc_string = "behind the data"
    tensors[0].metadata_props.add(key="a", value="b")
    typed = onnx.TensorProto(name="typed", data_type=TensorProto.FLOAT, dims=[2000])
    typed.float_data.extend(range(2000))
    tensors.append(typed)
    model.metadata_props.add(key="k", value="v" * 300)
    return model


def _saved(folder: Path) -> tuple[onnx.ModelProto, Path]:
    model, path = _model(), folder / "in.onnx"
    path.write_bytes(model.SerializeToString())
    return model, path


def test_a_file_is_read_without_them_and_written_as_it_was(tmp_path: Path) -> None:
    model, path = _saved(tmp_path)
    found, folder = read_light(path)
    assert isinstance(folder, WeightFolder)
    assert found.ByteSize() < model.ByteSize() / 3
    write_model(found, tmp_path / "out.onnx", folder)
    assert onnx.load_model(tmp_path / "out.onnx") == model


def test_a_model_in_memory_gives_the_same(tmp_path: Path) -> None:
    model, path = _saved(tmp_path)
    found, folder = set_apart(model, None)
    assert model == onnx.load_model(path)  # the caller's is as it was
    again, _ = read_light(path)
    assert found == again
    write_model(found, tmp_path / "out.onnx", folder)
    assert onnx.load_model(tmp_path / "out.onnx") == model


def test_they_begin_where_pages_do_and_are_what_they_were(tmp_path: Path) -> None:
    model, path = _saved(tmp_path)
    found, folder = read_light(path)
    apart = 0
    for tensor, wanted in zip(found.graph.initializer, model.graph.initializer, strict=True):
        where = place(tensor)
        if where is not None:
            apart += 1
            assert where.start % 4096 == 0
            assert where.length == len(wanted.raw_data) >= BIG
        assert b"".join(pieces(tensor, folder)) == wanted.raw_data
        np.testing.assert_array_equal(
            numpy_helper.to_array(tensor, str(folder)), numpy_helper.to_array(wanted)
        )
    assert apart >= 3


def test_over_the_limit_they_go_to_a_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_io, "INLINE_LIMIT", 10_000)
    model, path = _saved(tmp_path)
    found, folder = read_light(path)
    for name, source, where in (("a.onnx", found, folder), ("b.onnx", read_model(path), None)):
        written = write_model(source, tmp_path / name, where)
        assert [file.name for file in written] == [name, f"{name}.data"]
    texts = [
        (tmp_path / f"{name}.onnx").read_bytes().replace(b"b.onnx", b"a.onnx") for name in "ab"
    ]
    assert texts[0] == texts[1]
    assert (tmp_path / "a.onnx.data").read_bytes() == (tmp_path / "b.onnx.data").read_bytes()
    for tensor, wanted in zip(
        onnx.load(tmp_path / "a.onnx").graph.initializer, model.graph.initializer, strict=True
    ):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(wanted))


def test_a_process_that_ends_between_two_files_leaves_no_old_model_with_new_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_io, "INLINE_LIMIT", 10_000)
    file, replaced, real = tmp_path / "a.onnx", list[Path](), Path.replace
    write_model(_model(), file)

    def once(made: Path, place: Path) -> Path:
        if replaced:
            raise KeyboardInterrupt
        replaced.append(place)
        return real(made, place)

    monkeypatch.setattr(Path, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        write_model(_model(), file)
    assert replaced == [tmp_path / "a.onnx.data"]
    assert sorted(tmp_path.iterdir()) == replaced  # nothing reads them


def test_the_folder_lasts_as_long_as_somebody_holds_it(tmp_path: Path) -> None:
    _, path = _saved(tmp_path)
    _, folder = read_light(path)
    place_of_it = Path(str(folder))
    child = multiprocessing.get_context("fork").Process(target=gc.collect)
    child.start()
    child.join()
    assert place_of_it.is_dir()
    del folder
    gc.collect()
    assert not place_of_it.exists()


def test_no_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = _saved(tmp_path)
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ExhaustedError, match="temporary file") as caught:
        read_light(path)
    assert "TMPDIR" in caught.value.hint


def test_the_structure_says_all_but_their_bytes(tmp_path: Path) -> None:
    model, path = _saved(tmp_path)
    found = read_structure(path)
    assert [(t.name, t.dims) for t in found.graph.initializer] == [
        (t.name, t.dims) for t in model.graph.initializer
    ]
    assert found.graph.node == model.graph.node
    assert found.ByteSize() < model.ByteSize() / 3


def test_models_with_files_of_their_own_are_read_as_they_are(tmp_path: Path) -> None:
    onnx.save(
        _model(), tmp_path / "in.onnx", save_as_external_data=True, location="w", size_threshold=64
    )
    found, folder = read_light(tmp_path / "in.onnx")
    assert (found, folder) == (read_model(tmp_path / "in.onnx"), tmp_path)


@pytest.mark.parametrize("size", [8, 40], ids=["read", "left in the file"])
def test_no_output_takes_the_place_of_weights(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever function writes it; weights beside an output take a name that is free."""
    monkeypatch.chdir(tmp_path)
    values = np.arange(size * size, dtype=np.float32).reshape(size, size)
    shape = f"float[2, {size}]"
    model = parse(f"g ({shape} x) => ({shape} y) {{ y = MatMul(x, w) }}")
    model.graph.initializer.append(numpy_helper.from_array(values, "w"))
    onnx.save(
        model, "in.onnx", save_as_external_data=True, location="o.onnx.data", size_threshold=0
    )
    weights_before = Path("o.onnx.data").read_bytes()
    Path("loop.onnx").symlink_to("loop.onnx")
    made = onnxremat.optimize("in.onnx", budget="2x", bench_seconds=0)
    for write in (
        made.save,
        lambda path: onnxremat.differentiate("in.onnx", path),
        lambda path: set_batch("in.onnx", path, 4),
    ):
        with pytest.raises(UsageError, match="a file of the input"):
            write("o.onnx.data")
        with pytest.raises(UsageError, match=r"cannot write loop\.onnx"):
            write("loop.onnx")
    monkeypatch.setattr(onnx_io, "INLINE_LIMIT", 0)  # all weights go beside the model
    held = read_model("in.onnx")
    onnx.load_external_data_for_model(held, ".")
    write_model(held, "o.onnx", keep=files_of(read_model("in.onnx"), tmp_path))
    assert Path("o.onnx.data").read_bytes() == weights_before
    assert (
        numpy_helper.to_array(onnx.load("o.onnx").graph.initializer[0]).tolist() == values.tolist()
    )


def test_damaged_files_are_walked_no_further_than_they_go(tmp_path: Path) -> None:
    """Bytes knocked out or cut off."""
    whole, path = _model().SerializeToString(), tmp_path / "damaged"
    for cut in range(0, 3000, 7):
        data = bytearray(whole)
        data[cut] ^= 0xFF
        for damaged in (bytes(data), whole[: cut * len(whole) // 3000]):
            path.write_bytes(damaged)
            found = scanned(path, BIG)
            assert found is None or found.weights <= len(damaged)


def test_weights_of_every_length_begin_at_multiples_of_64_bytes() -> None:
    """Lengths around those where the numbers that say them take a byte more."""
    for count in (0, 1, 31, 32, 127, 128, 4000, 5000, 524_270, 524_280, 600_000):
        value = numpy_helper.from_array(np.arange(count, dtype=np.float32), "w")
        model = helper.make_model(helper.make_graph([], "g", [], [], [value]))
        whole, raw = model.SerializeToString(), value.raw_data
        tensor = model.graph.initializer[0]
        weights.refer(tensor, weights.Place("x", 0, len(raw)))
        parts = filled(model.SerializeToString(), [weights._around(0, tensor)])
        at = [sum(map(_length, parts[:i])) for i, p in enumerate(parts) if not isinstance(p, bytes)]
        assert at
        assert at[0] % 64 == 0
        made = b"".join(part if isinstance(part, bytes) else raw for part in parts)
        assert len(made) - len(whole) <= 70
        assert onnx.load_model_from_string(made) == onnx.load_model_from_string(whole)


def _length(part: bytes | Filling) -> int:
    return len(part) if isinstance(part, bytes) else part.length


def test_a_session_reads_weights_that_were_moved(tmp_path: Path) -> None:
    """In onnxruntime too, what stands last in a file counts."""
    model, path = models.build("mlp", batch=4, width=64, layers=3), tmp_path / "out.onnx"
    write_model(model, path)
    assert path.stat().st_size > model.ByteSize()
    feeds = models.feeds(model, seed=0)
    sessions = [
        onnxruntime.InferenceSession(file) for file in (str(path), model.SerializeToString())
    ]
    found, wanted = (session.run(None, feeds)[0] for session in sessions)
    np.testing.assert_array_equal(found, wanted)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path))
    _, path = _saved(tmp_path)
    read_light(path)
    gc.collect()
    assert list(tmp_path.iterdir()) == [path]


def test_damage_is_told_in_the_usual_words(tmp_path: Path) -> None:
    _, path = _saved(tmp_path)
    data = path.read_bytes()
    for damaged in (data[:-5], data[:10_000], b"\xff" + data):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match="not a readable ONNX model"):
            read_light(path)


def test_it_goes_with_a_process_that_ends_at_once(tmp_path: Path) -> None:
    _, path = _saved(tmp_path)
    text = f"""
import sys
from onnxremat.cli.interrupt import leave
from onnxremat.graph import light, weights
light.APART = light.LIGHT = {BIG}
found, folder = light.read_light({str(path)!r})
print(folder, folder.is_dir(), flush=True)
leave(7)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    folder, there = done.stdout.split()
    assert there == "True"
    assert not Path(folder).exists()


def test_what_a_killed_process_leaves_goes_when_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another one still holds stays, and so does what is only just made."""
    text = """
import os, signal, tempfile
from onnxremat.graph import temporary
tempfile.tempdir = {!r}
open(os.path.join(temporary.make_folder(), "weights0.data"), "w").write("x")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", text.format(str(tmp_path))], check=False)
    (left,) = tmp_path.iterdir()
    monkeypatch.setattr(temporary.tempfile, "tempdir", str(tmp_path))
    other = tmp_path / f"{temporary.PREFIX}link"
    other.symlink_to(left)
    for seconds, stays in ((temporary.NEW, True), (-1.0, False)):
        monkeypatch.setattr(temporary, "NEW", seconds)
        temporary._remove_left.cache_clear()
        with temporary.scratch_folder() as mine:
            temporary._remove_left.cache_clear()
            with temporary.scratch_folder():
                assert left.exists() == stays
                assert Path(mine).is_dir()
        assert not Path(mine).exists()
    assert list(tmp_path.iterdir()) == [other]
