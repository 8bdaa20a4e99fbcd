"""Several processes that train together do what one does with the joined batch."""

from __future__ import annotations

import gc
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.errors import UnsupportedError, UsageError
from onnxremat.grad import differentiate
from onnxremat.grad.description import training_of
from onnxremat.grad.dropout import COUNTER
from onnxremat.grad.update import update_of
from onnxremat.graph.tensor_files import read_tensors
from onnxremat.training.data import Arrays, Loader
from onnxremat.training.trainer import Trainer
from onnxremat.workers import mpi
from onnxremat.workers.checksum import checksum
from onnxremat.workers.mpi import Ranks
from onnxremat.workers.pipelines.pipelined import PipelineParallel
from onnxremat.workers.pipelines.staged import Wanted
from onnxremat.workers.sums.data_parallel import APART, DataParallel, Shard
from onnxremat.workers.sums.gathering import gathering
from onnxremat.workers.sums.halves import halves_of
from onnxremat.workers.sums.sharded import shares_of
from tests.limits import LONG
from tests.training import nets

ROOT = Path(__file__).parents[2]
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
several = pytest.mark.skipif(MPIEXEC is None, reason="no MPI beside this python")
ROWS = 48
LIMIT = 900  # seconds after which mpiexec ends a run: it hangs, however loaded the machine is


def net(batch: int) -> onnx.ModelProto:
    """Two layers, for rows of any number."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (5, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
    stored = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", 1, [batch, 5])],
        [helper.make_tensor_value_info("y", 1, [batch, 3])],
        stored,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def arrays() -> dict[str, np.ndarray]:
    """Rows that can be learned."""
    x = np.random.default_rng(1).standard_normal((ROWS, 5)).astype(np.float32)
    return {"x": x, "labels": (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.5)}


def mpiexec(ranks: int, *command: str, **options: Any) -> subprocess.Popen[str]:
    """Processes of this python, started together."""
    assert MPIEXEC
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["MPIEXEC_TIMEOUT"] = str(LIMIT)
    return subprocess.Popen(
        [MPIEXEC, "-n", str(ranks), sys.executable, *command], cwd=ROOT, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


NEAR = {  # settings of a step, and how near two sums of the same numbers are
    "sgd": ({"optimizer": "sgd"}, 1e-7),
    # Divided by the root of their squares, tiny gradients make rounding large.
    "adamw": ({"optimizer": "adamw", "clip_norm": 0.5}, 2e-6),
    "accumulate": ({"optimizer": "sgd", "accumulate": 2}, 1e-7),
    "formulas": ({"optimizer": "adamw"}, 2e-6),
    "sharded": ({"optimizer": "adamw"}, 2e-6),
    "sharded, a norm of all": ({"optimizer": "adamw", "clip_norm": 0.5}, 2e-6),
}


def write(folder: Path, step: onnx.ModelProto, data: dict[str, np.ndarray]) -> None:
    """What ``tests.workers.data_parallel_run`` reads."""
    folder.mkdir(parents=True)
    onnx.save(step, folder / "step.onnx")
    np.savez(folder / "data.npz", **data)


@several
def test_as_one_process_with_the_joined_batch(tmp_path: Path) -> None:
    """20 steps, and running statistics of a net that has some: all in one start of two ranks."""
    for name, (settings, _) in NEAR.items():
        step = differentiate(net(6), initializers=True, **settings)
        write(tmp_path / name, step, arrays())
    step = differentiate(nets.net(), optimizer="sgd", initializers=True)
    write(tmp_path / "statistics", step, nets.arrays())
    half = {"optimizer": "adamw", "precision": "fp16", "initializers": True}
    write(tmp_path / "overflow", differentiate(net(6), **half), one_large_row())
    folders = [str(tmp_path / name) for name in (*NEAR, "statistics")]
    folders += ["0.001", str(tmp_path / "overflow")]
    run = mpiexec(2, "-m", "tests.workers.data_parallel_run", *folders)
    said = run.communicate()
    assert run.returncode == 0, said
    for name, (settings, near) in NEAR.items():
        _compare_with_one(tmp_path / name, settings, near)
    _sharded(tmp_path / "sharded")
    # A checkpoint comes with the update, or it would hold the gradients of one rank only.
    assert not (tmp_path / "accumulate" / "at2.safetensors").exists()
    _, facts = read_tensors(tmp_path / "accumulate" / "at3.safetensors")
    assert (facts["step"], facts["gathered"]) == ("2", "0")
    _overflow(ranks_in(tmp_path / "overflow"), half)
    one, other = ranks_in(tmp_path / "statistics")
    assert one.keys() == other.keys()
    for name in {n for n in one if not n.endswith(".sum")} - {COUNTER}:
        np.testing.assert_array_equal(one[name], other[name])
    assert abs(one["mean"]).max() > 0


def _sharded(folder: Path) -> None:
    """Each rank holds state that the other does not; the checkpoint has both, and one process, or
    a sharded run of another number, goes on from it."""
    one, other = ranks_in(folder)
    assert one.keys() - other.keys()
    assert other.keys() - one.keys()
    saved = folder / "saved.safetensors"
    tensors, _ = read_tensors(saved)
    step = differentiate(net(12), optimizer="adamw", initializers=True)
    alone = Trainer(step, rate=0.1, threads=1)
    assert tensors.keys() == alone.state.keys()
    alone.fit(Arrays(arrays(), 12, seed=3), 5)
    for name, value in alone.state.items():
        np.testing.assert_allclose(tensors[name], value, rtol=1e-4, atol=2e-6, err_msg=name)
    for trainer in (alone, DataParallel(step, ranks=ALONE, threads=1, shard=True)):
        trainer.resume(saved)
        assert trainer.progress.step == 20
        for name, value in tensors.items():
            np.testing.assert_array_equal(trainer.state[name], value)


def ranks_in(folder: Path, count: int = 2) -> list[dict[str, np.ndarray]]:
    """What each rank held in the end."""
    return [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(count)]


def one_large_row() -> dict[str, np.ndarray]:
    """Rows one of which makes gradients that half precision cannot hold: on one rank of two."""
    data = arrays()
    data["x"][17] *= 20
    return data


def _overflow(both: list[dict[str, np.ndarray]], settings: dict[str, Any]) -> None:
    """All ranks leave out the updates that one process would, which runs the same parts: between
    them numbers are of half precision, within them a processor's are not."""
    step = differentiate(net(6), accumulate=2, **settings)
    alone = DataParallel(step, rate=0.001, threads=1, ranks=ALONE)
    alone.fit(Arrays(one_large_row(), 6, seed=3), 5)
    assert alone.state["loss_scale.good_updates"] < alone.progress.updates == 20
    for each in both:
        for name in ("loss_scale.good_updates", "loss_scale.doublings"):
            assert each[name] == alone.state[name]
        for name in ("w1", "b1", "w2", "b2"):
            np.testing.assert_allclose(each[name], alone.state[name], rtol=1e-4, atol=1e-5)


def _compare_with_one(folder: Path, settings: dict[str, Any], near: float) -> None:
    one, other = ranks_in(folder)
    alone = Trainer(differentiate(net(12), initializers=True, **settings), rate=0.1, threads=1)
    losses = alone.fit(Arrays(arrays(), 12, seed=3), 5)
    assert len(losses) == 20
    np.testing.assert_allclose(one["losses"], losses, rtol=1e-5)
    for name in ("w1", "b1", "w2", "b2"):
        np.testing.assert_allclose(one[name], alone.state[name], rtol=1e-5, atol=near)
        np.testing.assert_array_equal(other[name], one[name])


@several
@pytest.mark.parametrize(
    ("count", "together"),
    [
        (2, ["--data-parallel"]),
        pytest.param(2, ["--pipeline", "--micro-batches", "2"], marks=pytest.mark.slow),
        pytest.param(
            4, ["--data-parallel", "--pipeline", "2", "--micro-batches", "2"],
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_all_end_when_one_is_killed(count: int, together: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, differentiate(net(6), optimizer="sgd", initializers=True), arrays())
    saved = tmp_path / "c.safetensors"
    train = ["train", str(folder / "step.onnx"), "--data", str(folder / "data.npz"), "-q"]
    keep = ["--epochs", "1000000", "--checkpoint", str(saved), "--every", "1"]
    program = "from onnxremat.cli.app import main; main()"
    options = [*train, *together, *keep]
    run = mpiexec(count, "-c", program, *options, start_new_session=True)
    try:
        while not saved.exists():
            assert run.poll() is None, run.communicate()
            time.sleep(0.05)
        mine = [pid for pid in members(run.pid) if b"onnxremat.cli.app" in command(pid)]
        ranks = {int(environment(pid)["PMI_RANK"]): pid for pid in mine if pid != run.pid}
        assert set(ranks) == set(range(count))
        os.kill(ranks[1], signal.SIGKILL)
        said = "".join(run.communicate(timeout=LONG))  # else they wait for each other for ever
        assert run.returncode != 0
        assert "KILLED BY SIGNAL: 9" in said or "EXIT CODE: 9" in said
        assert not [pid for pid in ranks.values() if Path(f"/proc/{pid}").exists()]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)


@several
def test_a_program_that_fails_ends_all_processes() -> None:
    """Whatever the others wait for, and though nobody asked for it."""
    program = "from onnxremat.workers.mpi import join; r = join(); r.mean(1 // r.rank)"
    run = mpiexec(2, "-c", program)
    _, said = run.communicate()
    assert run.returncode != 0
    assert "ZeroDivisionError" in said
    assert "rank 0 of 2: " in said


@several
def test_trainers_one_after_the_other_leave_nothing_of_mpi() -> None:
    """It has 2048 communicators."""
    program = (
        "from onnxremat.workers.mpi import Mesh, join\nfor _ in range(2100): ranks = join()\n"
        "for _ in range(2100): ranks.courier().close(); Mesh.of(ranks)"
    )
    run = mpiexec(1, "-c", program)
    _, said = run.communicate()
    assert run.returncode == 0, said


@pytest.mark.parametrize("pipeline", [False, True])
def test_one_that_is_forgotten_ends_its_thread_and_is_freed(pipeline: bool) -> None:
    before = set(threading.enumerate())
    step = differentiate(net(6), optimizer="sgd", initializers=True)
    trainer: Trainer
    if pipeline:
        trainer = PipelineParallel(step, ranks=ALONE, wanted=Wanted(1), threads=1)
    else:
        trainer = DataParallel(step, ranks=ALONE, threads=1)
    trainer.step({name: array[:6] for name, array in arrays().items()})
    started, known = set(threading.enumerate()) - before, weakref.ref(trainer)
    assert started
    del trainer
    gc.collect()
    assert known() is None
    for thread in started:
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_an_error_without_words_has_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mpi, "ON_THE_WAY", 0.0)
    replace(ALONE, rank=1, size=2)._say(KeyboardInterrupt())
    assert capsys.readouterr().err == "error: rank 1 of 2: KeyboardInterrupt\n"


def members(session: int) -> list[int]:
    """Processes below one."""
    found, waiting = [], [session]
    while waiting:
        parent = waiting.pop()
        below = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        waiting += map(int, below)
        found += map(int, below)
    return found


def command(pid: int) -> bytes:
    """Its command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def environment(pid: int) -> dict[str, str]:
    """Its variables."""
    rows = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(row.decode().split("=", 1) for row in rows if b"=" in row)


class _Alone:
    """MPI with one rank."""

    IN_PLACE = None
    THREAD_MULTIPLE = 3

    class Request:
        @staticmethod
        def Testall(pending: list[Any]) -> bool:  # noqa: N802
            """Nothing is pending."""
            return True

    rank, size = 0, 1

    def Split(self, group: int, key: int) -> _Alone:  # noqa: N802
        """Every group is it alone."""
        return self

    @staticmethod
    def Query_thread() -> int:  # noqa: N802
        """Threads may call it."""
        return 3

    def Dup(self) -> _Alone:  # noqa: N802
        """The same one."""
        return self

    def Ibarrier(self) -> None:  # noqa: N802
        """Everybody is here."""

    def bcast(self, value: Any, root: int) -> Any:
        """What the only rank says."""
        return value

    def Free(self) -> None:  # noqa: N802
        """Nothing is held."""

    def allgather(self, value: Any) -> list[Any]:
        """What the only rank says."""
        return [value]

    def gather(self, value: Any, root: int) -> list[Any]:
        """What the only rank says."""
        return [value]

    def Ibcast(self, raw: np.ndarray, root: int) -> None:  # noqa: N802
        """Nobody else wants it."""

    def Iallreduce(self, place: Any, array: np.ndarray) -> None:  # noqa: N802
        """The sum over one rank."""


ALONE = Ranks(0, 1, 1, _Alone, _Alone())


def test_cores_are_dealt_out_to_those_that_may_use_them() -> None:
    """A launcher that gave each its own leaves each all of them."""
    mine, node = sorted(os.sched_getaffinity(0)), platform.node()
    for other, beside, share in (
        ((node, [max(mine) + 1]), 2, 1), (("elsewhere", mine), 1, 1), ((node, mine), 1, 1),
        ((node, mine), 2, 2),
    ):  # fmt: skip

        class World(_Alone):
            def allgather(self, value: Any, other: Any = other) -> list[Any]:
                return [value, other]

        ranks = Ranks(0, 2, beside, _Alone, World())
        assert (ranks.sharing(), ranks.cores()) == (share, max(1, len(mine) // share))


class _Another(_Alone):
    """A second process that says something else."""

    def allgather(self, value: Any) -> list[Any]:
        """That of both."""
        return [value, "another"]


def test_processes_with_other_files_are_refused() -> None:
    ranks = Ranks(0, 2, 2, _Another, _Another())
    with pytest.raises(UsageError, match="training graph differs between rank 0 and rank 1"):
        DataParallel(differentiate(net(6), initializers=True), ranks=ranks)


def test_a_graph_is_the_same_wherever_its_code_lay() -> None:
    """Exporters note lines of code, with their folders."""
    step = differentiate(net(6), initializers=True)
    same, other, values = onnx.ModelProto(), onnx.ModelProto(), onnx.ModelProto()
    for each in (same, other, values):
        each.CopyFrom(step)
    same.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/home/net.py:7")
    same.graph.node[0].doc_string = "/home/net.py:7"
    other.graph.node[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, f=2.0)
    tensor = values.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
    assert checksum(same) == checksum(step)
    assert len({checksum(each) for each in (step, other, values)}) == 3


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw", "lamb"])
def test_a_step_cut_in_two_is_the_step(optimizer: str) -> None:
    settings = {"optimizer": optimizer, "initializers": True, "clip_norm": 1.0}
    step = differentiate(nets.net(0.3), **settings)
    whole = Trainer(step, rate=0.02, threads=1, seed=5)
    cut = DataParallel(step, rate=0.02, threads=1, seed=5, ranks=ALONE)
    data = Arrays(nets.arrays(), nets.BATCH)
    np.testing.assert_allclose(cut.fit(data, 3), whole.fit(data, 3), rtol=1e-6)
    for name, value in whole.state.items():
        np.testing.assert_allclose(cut.state[name], value, rtol=1e-5, atol=1e-7)


def test_resuming_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Bit by bit; each rank with the dropout of its own."""
    saved, data = tmp_path / "c.safetensors", Arrays(nets.arrays(), nets.BATCH)
    step = differentiate(nets.net(0.3), optimizer="adamw", initializers=True)

    def trainer(ranks: Ranks) -> DataParallel:
        return DataParallel(step, rate=0.02, threads=1, ranks=ranks)

    whole, half, later = trainer(ALONE), trainer(ALONE), trainer(ALONE)
    whole.fit(data, 2)
    half.fit(data, 1, checkpoint=saved)
    later.resume(saved)
    later.fit(data, 2)
    for name, value in whole.state.items():
        np.testing.assert_array_equal(later.state[name], value)
    second = trainer(replace(ALONE, rank=1))
    assert second.state[COUNTER] - trainer(ALONE).state[COUNTER] == APART
    second.resume(saved)
    assert second.state[COUNTER] - half.state[COUNTER] == APART
    second.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_half_precision_and_its_loss_scale() -> None:
    step = differentiate(net(8), optimizer="adamw", precision="fp16", initializers=True)
    whole = Trainer(step, rate=0.02, threads=1)
    cut = DataParallel(step, rate=0.02, threads=1, ranks=ALONE)
    data = Arrays(arrays(), 8)
    np.testing.assert_allclose(cut.fit(data, 2), whole.fit(data, 2), rtol=1e-3)
    assert cut.state["loss_scale.good_updates"] == whole.state["loss_scale.good_updates"]


def test_the_cut_sums_gradients_and_nothing_else() -> None:
    step = differentiate(net(8), optimizer="sgd")
    made = gathering(step)
    update = update_of(made)
    assert update is not None
    onnx.checker.check_model(made)
    onnx.checker.check_model(update)
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in update.graph.input
    }
    sums = sorted(shapes[name] for _, name in training_of(update).gradients)
    assert sums == [[3], [5, 8], [8], [8, 3]]
    assert gathering(made) is made


def test_planned_steps_are_refused() -> None:
    step = differentiate(net(8), optimizer="sgd")
    step.metadata_props.add(key="onnxremat.plan", value="{}")
    with pytest.raises(UnsupportedError, match="planned step"):
        gathering(step)
    with pytest.raises(UnsupportedError, match="shared out"):
        DataParallel(step, ranks=ALONE, shard=True)


def test_state_is_dealt_out_evenly_and_nothing_is_lost() -> None:
    step = differentiate(net(8), optimizer="adamw")
    shares = shares_of(halves_of(gathering(step), None), 2)
    kept = [shares.elsewhere(1 - rank) for rank in range(2)]
    assert not kept[0] & kept[1]
    states = {v.input for v in training_of(step).states if v.input != "optimizer.step"}
    assert kept[0] | kept[1] == states
    assert {shares.owner[name] for name in ("w1", "w2")} == {0, 1}
    assert set(shares.brought(2)) == {"w1", "b1", "w2", "b2"}


def test_ranks_have_as_many_steps_in_an_epoch_that_is_shorter_than_the_first() -> None:
    """Of a loader that fills one array again and again, too."""
    buffer = np.zeros(1)

    def loader(epoch: int) -> Iterator[dict[str, np.ndarray]]:
        for k in range(6 - epoch):
            buffer[0] = k
            yield {"x": buffer}

    parts = [Shard(Loader(loader), Ranks(k, 3, 1, None, None)) for k in range(3)]
    for epoch, want in enumerate([[0, 3], [0], [0], [0], []]):
        seen = [[float(batch["x"][0]) for batch in part.epoch(epoch)] for part in parts]
        assert seen == [[number + rank for number in want] for rank in range(3)]


def test_shards_are_the_joined_batches() -> None:
    parts = [Shard(Arrays(arrays(), 4, seed=2), Ranks(k, 3, 1, None, None)) for k in range(3)]
    joined = Arrays(arrays(), 12, seed=2)
    assert [len(part) for part in parts] == [4] * 3
    for start in (0, 2):
        rows = [list(part.epoch(1, start)) for part in parts]
        for k, whole in enumerate(joined.epoch(1, start)):
            together = np.concatenate([row[k]["x"] for row in rows])
            assert sorted(map(tuple, together)) == sorted(map(tuple, whole["x"]))
    with pytest.raises(UsageError, match="too few"):
        Shard(Arrays(arrays(), 24), Ranks(0, 3, 1, None, None))
