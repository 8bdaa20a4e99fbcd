"""Files in, graphs out; and the other way round."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
from onnxremat.api import read_plan
from onnxremat.errors import ExhaustedError, ModelError, OnnxrematError, UsageError
from onnxremat.graph import onnx_io
from onnxremat.graph.atomic import atomic, check_writable
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Role
from onnxremat.graph.onnx_io import external_files, read_model, to_model, to_ops, write_model
from onnxremat.graph.order import file_order, without_dead_ops
from onnxremat.graph.tensor_files import read_tensors
from onnxremat.graph.wire import read_light
from onnxremat.ort.arrays import read_arrays
from onnxremat.ort.infer import bind, build_graph
from onnxremat.pipeline.original.source import read_source
from onnxremat.placement.graph_files import read_graph as placement_graph
from onnxremat.placement.splits import read_split
from onnxremat.planner.graph_files import read_graph as planner_graph
from onnxremat.planner.solution_files import read_solution
from onnxremat.report.pages.curve_drawing import read_sweep
from tests.toolbox import graph_of, parse, random_dag, shuffled, training_chain

CHAIN = "g (float[8] x) => (float[8] y) { a = Sin(x) b = Cos(a) c = Exp(b) y = Add(c, a) }"


@pytest.mark.parametrize(
    ("dtype", "shape", "count"),
    [
        (TensorProto.FLOAT, (2, 3), 24), (TensorProto.FLOAT, (), 4), (TensorProto.FLOAT, (0, 5), 0),
        (TensorProto.BOOL, (7,), 7), (TensorProto.FLOAT16, (3,), 6), (TensorProto.INT4, (3,), 2),
        (TensorProto.DOUBLE, (2,), 16), (TensorProto.COMPLEX128, (1,), 16), (0, (4,), 0),
    ],
)  # fmt: skip
def test_bytes_of_tensors(dtype: int, shape: tuple[int, ...], count: int) -> None:
    assert tensor_bytes(dtype, shape) == count


def test_bytes_agree_with_numpy() -> None:
    for dtype in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8, TensorProto.FLOAT16):
        array = np.zeros((3, 5), helper.tensor_dtype_to_np_dtype(dtype))
        assert tensor_bytes(dtype, array.shape) == array.nbytes


def test_every_tensor_of_a_model_is_known() -> None:
    model = models.build("resnet18", size=32, width=8)
    graph = build_graph(bind(model))
    for op in graph.ops:
        for name in (*op.reads, *op.writes):
            assert graph.tensors[name].shape is not None
    assert graph.weight_bytes == sum(
        numpy_helper.to_array(t).nbytes for t in model.graph.initializer
    )
    roles = {tensor.role for tensor in graph.tensors.values()}
    assert roles == set(Role)


def test_nodes_in_any_order_are_sorted() -> None:
    graph = build_graph(random_dag(3, 20))
    model = to_model(graph)
    nodes = list(model.graph.node)
    Random(1).shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    ops = to_ops(model)
    done = set(graph.inputs)
    for op in ops:
        assert set(op.reads) <= done
        done.update(op.writes)
    assert {op.name for op in ops} == {op.name for op in graph.ops}


def test_a_valid_order_is_left_alone() -> None:
    graph = shuffled(build_graph(random_dag(5, 20)), Random(2))
    assert to_ops(to_model(graph)) == graph.ops


def test_dead_ops_go_and_nothing_else() -> None:
    graph = graph_of(
        """g (float[8] x) => (float[8] y) { a = Sin(x) dead = Cos(a) deader = Exp(dead)
        y = Add(a, x) }"""
    )
    kept = without_dead_ops(graph)
    assert [op.op_type for op in kept.ops] == ["Sin", "Add"]
    assert without_dead_ops(kept) is kept
    assert set(kept.tensors) == {"x", "a", "y"}


def test_file_order_follows_the_listing() -> None:
    graph = shuffled(build_graph(random_dag(7, 20)), Random(4))
    listed = [name for op in build_graph(random_dag(7, 20)).ops for name in op.writes]
    found = [name for op in file_order(graph, listed).ops for name in op.writes]
    assert found == listed


def test_inference_goes_on_from_shapes_that_the_file_states() -> None:
    body = """g (float[8] x) => (y) { n = NonZero(x)  t = Transpose(n)  f = Cast<to = 1>(t)
        y = Sin(f) }"""
    model = parse(body)
    unknown = build_graph(model)
    assert unknown.tensors["f"].shape is None
    model.graph.value_info.append(helper.make_tensor_value_info("n", TensorProto.INT64, (1, 8)))
    assert build_graph(model).tensors["f"].shape == (8, 1)


# Writing


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        with atomic(path) as temporary:
            temporary.write_text("x")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_only_regular_files_are_written(tmp_path: Path) -> None:
    check_writable(tmp_path / "new")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, tmp_path / "gone" / "file", Path("/proc/file"), pipe):
        with pytest.raises(UsageError):
            check_writable(path)
    assert list(tmp_path.iterdir()) == [pipe]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to would be waited for, a device read until memory is used up."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    readers: list[Callable[[Path], object]] = [
        read_model, read_light, read_tensors, read_plan, read_sweep, placement_graph, planner_graph,
        lambda path: read_split(path, None),  # type: ignore[arg-type]  # not looked at
        lambda path: read_solution(None, path),  # type: ignore[arg-type]
        lambda path: read_arrays(path, "inputs"),
    ]  # fmt: skip
    for path in (pipe, Path("/dev/zero")):
        for read in readers:
            with pytest.raises((OnnxrematError, ValueError)) as refused:
                read(path)
            said = f"{refused.value} {getattr(refused.value, 'why', '')}"
            assert "no regular file" in said, read


def test_weights_over_the_limit_go_to_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_io, "INLINE_LIMIT", 10_000)
    graph = training_chain(3, 32, 4)
    written = write_model(to_model(graph), tmp_path / "out.onnx")
    assert {path.name for path in written} == {"out.onnx", "out.onnx.data"}
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    wanted = {t.name: numpy_helper.to_array(t) for t in graph.model.graph.initializer}
    for tensor in onnx.load(tmp_path / "out.onnx").graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), wanted[tensor.name])
    before, spill = {path: path.read_bytes() for path in tmp_path.iterdir()}, onnx_io.lay_out

    def full(*given: Any) -> None:
        spill(*given)
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(onnx_io, "lay_out", full)  # as where the model finds no room behind them
    with pytest.raises(ExhaustedError):
        write_model(to_model(training_chain(4, 32, 4)), tmp_path / "out.onnx")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_only_weights_that_are_read_go_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained weights take the place of some in a file, and there are more than a message holds."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = to_model(training_chain(3, 32, 4))
    onnx.save(whole, tmp_path / "a" / "in.onnx", save_as_external_data=True, location="w.bin")
    stored = onnx.load(tmp_path / "a" / "in.onnx").graph.initializer
    wanted = {t.name: numpy_helper.to_array(t) for t in stored}
    model = read_model(tmp_path / "a" / "in.onnx")
    first = model.graph.initializer[0]
    wanted[first.name] = wanted[first.name] + 1
    first.CopyFrom(numpy_helper.from_array(wanted[first.name], first.name))
    left = sum(array.nbytes for name, array in wanted.items() if name != first.name)
    for limit in (10**9, 100):
        monkeypatch.setattr(onnx_io, "INLINE_LIMIT", limit)
        for folder in ("a", "b"):
            written = write_model(model, tmp_path / folder / "out.onnx", tmp_path / "a")
            assert len(written) == (1 if folder == "a" and limit > 100 else 2)
            most = left + first.ByteSize() + 8 * 4096  # each from a page
            assert all(file.stat().st_size < most for file in written[1:])
            for tensor in onnx.load(written[0]).graph.initializer:
                np.testing.assert_array_equal(numpy_helper.to_array(tensor), wanted[tensor.name])
    assert model.graph.initializer[0].raw_data  # saving leaves the model as it is


def test_external_weights_are_not_read(tmp_path: Path) -> None:
    onnx.save(
        to_model(training_chain(2, 64, 4)), tmp_path / "in.onnx", save_as_external_data=True,
        location="w.bin", size_threshold=64,
    )  # fmt: skip
    model = read_model(tmp_path / "in.onnx")
    assert external_files(model) == {"w.bin": (tmp_path / "w.bin").stat().st_size}
    assert all(not t.raw_data for t in model.graph.initializer if t.external_data)
    os.truncate(tmp_path / "w.bin", 100)
    with pytest.raises(ModelError, match="truncated"):
        read_model(tmp_path / "in.onnx")


def test_text_formats_of_onnx_are_read(tmp_path: Path) -> None:
    model = parse(CHAIN)
    for suffix in ("json", "textproto"):
        path = tmp_path / f"model.{suffix}"
        onnx.save_model(model, path)
        assert read_model(path) == model


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """protobuf gives them as bytes, which nothing sorts beside text."""
    whole = parse(
        """g (float[8] xq) => (float[8] yq) {
            go = Constant<value = bool {1}>()
            yq = If(go)<then_branch = t () => (float[8] a) { a = Sin(xq) },
                        else_branch = e () => (float[8] bq) { bq = Cos(xq) }>
        }"""
    )
    whole.graph.node[1].name = "nq"
    for name in ("xq", "yq", "bq", "nq"):
        broken = whole.SerializeToString().replace(name.encode(), name[0].encode() + b"\xff")
        (tmp_path / "net.onnx").write_bytes(broken)
        for source in (tmp_path / "net.onnx", onnx.load_from_string(broken)):
            with pytest.raises(ModelError, match="no UTF-8 text"):
                read_source(source)


def test_a_result_that_is_given_twice_is_there_once() -> None:
    """Or a budget would be refused that works."""
    graph = graph_of("g (float[8] x) => (float[8] y, float[8] x) { y = Sin(x) }")
    twice = replace(graph, outputs=("y", "y", "x"))
    assert twice.result_bytes == 32


def test_a_length_of_nothing_is_a_length() -> None:
    """onnxruntime takes no other; -1, as older exporters write it, is none."""
    model = parse("g (float[2, 3] x) => (y) { y = Relu(x) }")
    first = model.graph.input[0].type.tensor_type.shape.dim[0]
    first.dim_value = 0
    assert build_graph(bind(model)).tensors["x"].shape == (0, 3)
    with pytest.raises(UsageError, match="2 where the model fixes 0"):
        bind(model, {"x": (2, 3)})
    first.dim_value = -1
    assert build_graph(bind(model, {"x": (2, 3)})).tensors["x"].shape == (2, 3)
    with pytest.raises(UsageError, match="without a size"):
        bind(model)
