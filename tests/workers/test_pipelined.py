"""A pipeline over several processes does what one process does with the joined batch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import models
from onnxremat.cli.commands import app
from onnxremat.errors import UsageError
from onnxremat.grad import LossScale, differentiate
from onnxremat.graph.tensor_files import read_tensors
from onnxremat.training.data import Arrays
from onnxremat.training.state import Step
from onnxremat.training.trainer import Trainer
from onnxremat.workers.mpi import STARTED
from onnxremat.workers.pipeline import B, F, W
from onnxremat.workers.pipelines.pipelined import PipelineParallel
from onnxremat.workers.pipelines.schedules import NAMED
from onnxremat.workers.pipelines.staged import Wanted, gathered
from onnxremat.workers.sums.data_parallel import DataParallel
from onnxremat.workers.sums.halves import halves_of
from onnxremat.workers.sums.layers import J
from tests.toolbox import parse
from tests.training import nets
from tests.workers.test_data_parallel import ALONE, arrays, mpiexec, net, several, write
from tests.workers.test_overlap import joined

MICRO_BATCHES = 4
SIZES: dict[str, dict[str, Any]] = {
    "resnet18": {"size": 64, "width": 8, "classes": 10},
    "bert": {"sequence": 8, "hidden": 16, "layers": 4, "heads": 2, "vocab": 50, "positions": 8},
    "gpt2": {"sequence": 8, "hidden": 16, "layers": 4, "heads": 2, "vocab": 50, "positions": 8},
}
# Where a channel has fewer values, batch normalization makes rounding tenfold with every step.
ROWS = {"resnet18": 4, "bert": 2, "gpt2": 2}


def prepare(folder: Path, name: str, pipelines: int = 1, **settings: Any) -> Path:
    """A step for micro-batches, the one process's step, and a joined batch."""
    folder.mkdir(parents=True)
    sizes, parts = SIZES[name], MICRO_BATCHES * pipelines
    small = models.build(name, batch=ROWS[name], **sizes)
    step = differentiate(small, initializers=True, **settings)
    onnx.save(step, folder / "step.onnx")
    big = models.build(name, batch=ROWS[name] * parts, **sizes)
    whole = differentiate(big, initializers=True, **settings)
    np.savez(folder / "data.npz", **joined(big, whole))
    if name == "resnet18":  # batch normalization sees a micro-batch at a time
        whole = differentiate(small, initializers=True, accumulate=parts, **settings)
    onnx.save(whole, folder / "whole.onnx")
    return folder


def alone(folder: Path, steps: int, rate: float) -> tuple[list[float], dict[str, np.ndarray]]:
    """What one process makes of it."""
    trainer = Trainer(folder / "whole.onnx", rate=rate, threads=1)
    batch = dict(np.load(folder / "data.npz"))
    rows = trainer.batch_size
    losses = []
    for _ in range(steps):
        parts = len(batch[trainer.training.target]) // rows
        each = [
            trainer.step({n: a[k * rows : (k + 1) * rows] for n, a in batch.items()})
            for k in range(parts)
        ]
        losses.append(sum(each) / parts)
    return losses, trainer.state


def run(folder: Path, ranks: int, rows: list[dict[str, Any]]) -> None:
    """Train in a pipeline."""
    what = folder / "what.json"
    what.write_text(json.dumps(rows))
    started = mpiexec(ranks, "-m", "tests.workers.pipeline_run", str(what))
    said = started.communicate()
    assert started.returncode == 0, said


def differences(folder: Path, row: dict[str, Any]) -> tuple[float, float]:
    """Of losses and of everything trained from those of one process, as shares of these and of the
    largest element."""
    got = dict(np.load(folder / f"{row['name']}.npz"))
    losses, state = alone(folder, row["steps"], row["rate"])
    off = abs(got.pop("losses") / np.array(losses) - 1).max()
    sums = {name for name in state if name.endswith("grad_sum")}
    assert got.keys() == state.keys() - sums
    each = {n: abs(a - state[n]).max() / max(abs(state[n]).max(), 1e-3) for n, a in got.items()}
    return float(off), float(max(each.values()))


def compare(folder: Path, row: dict[str, Any], near: float, losses_near: float) -> None:
    """Losses and everything trained."""
    losses, state = differences(folder, row)
    assert losses <= losses_near
    assert state <= near


def told(folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Micro-batches alive, and what the simulation says of them."""
    found: dict[str, Any] = json.loads((folder / f"{row['name']}.json").read_text())
    return found


def planned(folder: Path, schedule: str, steps: int, **wanted: Any) -> dict[str, Any]:
    """What :mod:`tests.workers.pipeline_run` trains."""
    wanted = {"micro_batches": MICRO_BATCHES, "schedule": schedule, **wanted}
    return {"folder": str(folder), "name": schedule, "steps": steps, "rate": 0.01, "wanted": wanted}


@several
def test_as_one_process_with_the_joined_batch(tmp_path: Path) -> None:
    """GPT-2, whose embedding both ends read: 20 steps of SGD; a norm over all ranks; AdamW."""
    plain = prepare(tmp_path / "plain", "gpt2", optimizer="sgd")
    clipped = prepare(tmp_path / "clipped", "gpt2", optimizer="sgd", clip_norm=0.5)
    adamw = prepare(tmp_path / "adamw", "gpt2", optimizer="adamw")
    # The count of its steps is held back where one is skipped, and so is one rank's to keep.
    settings = {"optimizer": "adam:epsilon=0.01", "loss_scale": LossScale(8.0)}
    scaled = prepare(tmp_path / "scaled", "gpt2", **settings)
    rows = [planned(plain, "1f1b", 20), planned(clipped, "zb-h1", 3), planned(adamw, "gpipe", 20)]
    run(tmp_path, 2, [*rows, counted := planned(scaled, "1f1b", 5)])
    compare(scaled, counted, 1e-4, 1e-5)
    compare(plain, rows[0], 1e-5, 1e-5)
    compare(clipped, rows[1], 1e-5, 1e-5)
    compare(adamw, rows[2], 10.0, 1e-4)  # it makes rounding large where a gradient is zero
    for row, most in zip(rows, ([2, 1], [2, 2], [4, 4]), strict=True):
        facts = told(Path(row["folder"]), row)
        alive = [facts["alive"][key] for key in sorted(facts["alive"])]
        assert alive == most
        assert all(a <= b for a, b in zip(alive, facts["simulated"], strict=True))


def tied(batch: int) -> onnx.ModelProto:
    """Two layers of one weight."""
    weight = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], "up"),
        helper.make_node("Tanh", ["h"], ["a"], "curve"),
        helper.make_node("Gemm", ["a", "w"], ["y"], "down", transB=1),
    ]
    graph = helper.make_graph(
        nodes, "tied",
        [helper.make_tensor_value_info("x", 1, [batch, 5])],
        [helper.make_tensor_value_info("y", 1, [batch, 5])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_gradients_of_a_tied_weight_are_joined_when_both_are_there() -> None:
    """The first stage has its W before the last: an order that measured times may lead to."""
    step = differentiate(tied(6), optimizer="sgd", initializers=True)
    whole = Trainer(differentiate(tied(12), optimizer="sgd", initializers=True), threads=1)
    wanted = Wanted(2, "zb-v", stages="down")
    pipe = PipelineParallel(step, ranks=ALONE, wanted=wanted, threads=1)
    assert (J, 0) in pipe.staged.pieces
    turns = [(0, F), (1, F), (1, B), (0, B), (0, W), (1, W)]
    pipe._actions = [(stage, kind, k) for stage, kind in turns for k in range(2)]
    for batch in Arrays(arrays(), 12).epoch(0):
        assert pipe.step(batch) == pytest.approx(whole.step(batch), rel=1e-5)
    np.testing.assert_allclose(pipe.state["w"], whole.state["w"], rtol=1e-5, atol=1e-7)


def test_a_loss_scale_that_is_given_and_an_input_that_nobody_reads() -> None:
    """The update of a step that is cut in two reads the former."""
    model = net(6)
    model.graph.input.append(helper.make_tensor_value_info("unread", 1, [6, 2]))
    step = differentiate(model, optimizer="sgd", initializers=True, loss_scale=True)
    batch = {name: a[:6] for name, a in arrays().items()} | {"unread": np.zeros((6, 2), np.float32)}
    settings: dict[str, Any] = {"rate": 0.1, "threads": 1, "loss_scale": 8.0}
    one = Trainer(step, **settings)
    others = [
        PipelineParallel(step, ranks=ALONE, wanted=Wanted(1), **settings),
        DataParallel(step, ranks=ALONE, **settings),
    ]
    losses = one.fit(Arrays(batch, 6), 3)
    for other in others:
        np.testing.assert_allclose(other.fit(Arrays(batch, 6), 3), losses, rtol=1e-6)


def test_parts_that_stop_at_made_up_values_are_estimated() -> None:
    """They are measured with zeros for whole numbers, and one divides by them."""
    text = """g (float[2, 3] x, int64[2] at, int64[2] by) => (float[2, 3] y) {
        h = Tanh(x)  a = MatMul(h, w)  row = Div(at, by)  b = Gather(table, row)  y = Add(a, b) }"""
    model = parse(text)
    for name, shape in {"w": (3, 3), "table": (4, 3)}.items():
        value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 9
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    step = differentiate(model, optimizer="sgd", initializers=True)
    batch = {"x": np.ones((4, 3), np.float32), "at": np.arange(4), "by": np.full(4, 2)}
    batch["labels"] = np.arange(4) % 3
    one, pipe = (
        PipelineParallel(step, ranks=ALONE, wanted=Wanted(2, *cut), threads=1)
        for cut in ((), ("interleaved", "Add_4"))
    )
    assert pipe.step(batch) == one.step(batch)


def test_a_target_without_rows_is_that_of_every_micro_batch() -> None:
    """It ended with a traceback."""
    model = net(6)
    model.graph.node.append(helper.make_node("ReduceMean", ["y"], ["all"], keepdims=0))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("all", 1, []))
    settings: dict[str, Any] = {"optimizer": "sgd", "loss": "mse", "initializers": True}
    one = Trainer(differentiate(model, accumulate=2, **settings), threads=1)
    wanted = Wanted(2, "zb-v", stages="Tanh_1")
    step = differentiate(model, **settings)
    pipe = PipelineParallel(step, ranks=ALONE, wanted=wanted, threads=1)
    x, target = arrays()["x"][:12], {one.training.target: np.array(0.5, np.float32)}
    wanted_loss = sum(one.step({"x": x[k : k + 6], **target}) for k in (0, 6)) / 2
    assert pipe.step({"x": x, **target}) == pytest.approx(wanted_loss, rel=1e-5)
    np.testing.assert_allclose(pipe.state["w1"], one.state["w1"], rtol=1e-5, atol=1e-7)


def test_statistics_move_with_every_micro_batch(tmp_path: Path) -> None:
    """As in a step made for several batches per update."""
    step = differentiate(nets.net(), optimizer="sgd", initializers=True)
    whole = differentiate(nets.net(), optimizer="sgd", initializers=True, accumulate=2)
    wanted = Wanted(2, "zb-v", stages="BatchNormalization_1")  # its statistics' readers before it
    pipe = PipelineParallel(step, ranks=ALONE, wanted=wanted, rate=0.1, threads=1)
    part = pipe.staged.pieces[F, 1]
    assert {"mean", "var"} <= {*part.states, *part.reads}
    one = Trainer(whole, rate=0.1, threads=1)
    for batch in Arrays(nets.arrays(), 2 * nets.BATCH).epoch(0):
        pipe.step(batch)
        for k in range(2):
            one.step({n: a[k * nets.BATCH : (k + 1) * nets.BATCH] for n, a in batch.items()})
    for name in pipe.state.keys() & one.state.keys():
        np.testing.assert_allclose(
            pipe.state[name], one.state[name], rtol=1e-5, atol=1e-7, err_msg=name
        )
    assert abs(pipe.state["mean"]).max() > 0


def called_twice(batch: int) -> onnx.ModelProto:
    """A normalization that is called twice, with a product between."""
    random, norm = np.random.default_rng(0), ("s", "b", "mean", "var")
    stored = {name: random.standard_normal((5, 5)) for name in ("w", "v")}
    stored |= {name: random.uniform(0.5, 1.5, 5) for name in norm}
    nodes = [
        helper.make_node("BatchNormalization", ["x", *norm], ["n"], "/bn/BN"),
        helper.make_node("MatMul", ["n", "w"], ["h"], "/first/MatMul"),
        helper.make_node("BatchNormalization", ["h", *norm], ["m"], "/bn_1/BN"),
        helper.make_node("MatMul", ["m", "v"], ["y"], "/last/MatMul"),
    ]
    graph = helper.make_graph(
        nodes, "called_twice",
        [helper.make_tensor_value_info("x", 1, [batch, 5])],
        [helper.make_tensor_value_info("y", 1, [batch, 5])],
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_statistics_of_a_module_that_two_stages_call_move_in_one() -> None:
    settings: dict[str, Any] = {"optimizer": "sgd", "loss": "mse", "initializers": True}
    step = differentiate(called_twice(6), **settings)
    one = Trainer(differentiate(called_twice(6), accumulate=2, **settings), rate=0.1, threads=1)
    wanted = Wanted(2, "zb-v", stages="/bn_1/BN")
    pipe = PipelineParallel(step, ranks=ALONE, wanted=wanted, rate=0.1, threads=1)
    pieces = pipe.staged.pieces.items()
    for name in ("mean", "var"):
        assert {key[1] for key, part in pieces if name in (*part.states, *part.reads)} == {1}
    random = np.random.default_rng(1)
    shapes = dict.fromkeys(("x", one.training.target), (12, 5))
    batch = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    for _ in range(2):
        pipe.step(batch)
        for k in range(2):
            one.step({n: a[6 * k : 6 * k + 6] for n, a in batch.items()})
    for name in ("mean", "var", "w", "v", "s"):
        np.testing.assert_allclose(pipe.state[name], one.state[name], rtol=1e-5, atol=1e-6)


def test_a_stage_that_begins_with_a_normalization_has_its_statistics() -> None:
    """What is copied of them for the kernel is listed before it, in the stage that ends there."""
    step = differentiate(nets.net(), optimizer="sgd", initializers=True)
    layers = halves_of(gathered(Step(step, None, None)).model, None).layers(
        ["BatchNormalization_1"]
    )
    for name in ("mean", "var"):
        assert {layer for (_, layer), ops in layers.parts.items()
                if any(name in op.reads for op in ops)} == {1}  # fmt: skip


@several
@pytest.mark.slow
def test_every_schedule_and_net(tmp_path: Path) -> None:
    rows = []
    for name in SIZES:
        folder = prepare(tmp_path / name, name, optimizer="sgd")
        rows += [planned(folder, schedule, 3) for schedule in (*NAMED, "auto")]
        rows[-1]["steps"] = 20
    run(tmp_path, 2, rows)
    for row in rows:
        compare(Path(row["folder"]), row, 1e-5, 1e-5)
        facts = told(Path(row["folder"]), row)
        alive = [facts["alive"][key] for key in sorted(facts["alive"])]
        assert all(a <= b for a, b in zip(alive, facts["simulated"], strict=True))


def trained(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Every net with both optimizers, trained for 20 steps in one start."""
    rows = []
    for name in SIZES:
        for optimizer in NEAR:
            each = prepare(folder / f"{name}-{optimizer}", name, optimizer=optimizer)
            rows.append(planned(each, "zb-h1", 20))
    run(folder, ranks, rows)
    return rows


NEAR = {"sgd": 1e-5, "adamw": 1e-4}  # of losses; of all that is trained, too, with SGD


@several
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_nets(ranks: int, tmp_path: Path) -> None:
    for row in trained(tmp_path, ranks):
        optimizer = Path(row["folder"]).name.split("-")[1]
        losses, state = differences(Path(row["folder"]), row)
        assert losses <= NEAR[optimizer], row
        assert state <= NEAR[optimizer] or optimizer != "sgd", row


@several
@pytest.mark.slow
def test_four_processes_of_two_stages(tmp_path: Path) -> None:
    rows = []
    for name in SIZES:
        folder = prepare(tmp_path / name, name, optimizer="sgd")
        rows.append(planned(folder, "interleaved", 2))
    run(tmp_path, 4, rows)
    for row in rows:
        compare(Path(row["folder"]), row, 1e-5, 1e-5)


PROGRAM = "from onnxremat.cli.app import main; main()"
PIPELINE = ["--pipeline", "--micro-batches", "2", "--schedule", "zb-h1", "--stages", "Tanh_1"]


def train(folder: Path, *options: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """The command, with two processes or more."""
    given = [str(folder / "step.onnx"), "--data", str(folder / "data.npz"), "--no-shuffle", "-q"]
    run = mpiexec(ranks, "-c", PROGRAM, "train", *given, *options)
    said = run.communicate()
    assert run.returncode == 0, said
    return subprocess.CompletedProcess(run.args, 0, *said)


@several
@pytest.mark.slow
def test_resuming_makes_the_bits_of_an_uninterrupted_run(tmp_path: Path) -> None:
    folder, halves, whole = tmp_path / "run", tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write(folder, differentiate(net(6), optimizer="adamw", initializers=True), arrays())
    train(folder, *PIPELINE, "--checkpoint", str(halves))
    train(folder, *PIPELINE, "--checkpoint", str(halves), "--resume", "--epochs", "2")
    train(folder, *PIPELINE, "--checkpoint", str(whole), "--epochs", "2")
    one, other = read_tensors(halves)[0], read_tensors(whole)[0]
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--schedule", "zb-h1"], "for pipelines"),
        (["--stages", "a"], "for pipelines"),
        (["--pipeline", "--schedule", "1f1b", "--schedule", "gpipe"], "two of one kind"),
        (["--pipeline", "--schedule", "zbh1"], "of the pipeline: 1f1b"),
        (["--shard-state"], "for --data-parallel"),
        (["--budget", "1GiB"], "for pipelines"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str) -> None:
    given = ["train", "none.onnx", "--data", "none.npz", *options]
    result = CliRunner().invoke(app, given)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("launcher", STARTED)
def test_processes_that_share_nothing_are_refused(
    launcher: tuple[str, str], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would all train the same and write the same files; the first says so."""
    for name, value in zip(launcher, (2, rank), strict=True):
        monkeypatch.setenv(name, str(value))
    result = CliRunner().invoke(app, ["train", "none.onnx", "--data", "none.npz"])
    told = isinstance(result.exception, UsageError) and "--data-parallel" in str(result.exception)
    assert (told, result.exit_code) == ((True, 1) if rank == 0 else (False, UsageError.exit_code))
