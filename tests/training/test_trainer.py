"""The training loop: checkpoints survive a kill, export gives the trained model, data repeats."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxremat.errors import ModelError, TrainingWarning, UsageError
from onnxremat.grad import CrossEntropy, LossScale, differentiate, training_of
from onnxremat.graph.tensor_files import drop_leftovers, read_tensors, write_tensors
from onnxremat.ort.denormals import denormals_as_zero
from onnxremat.session import held as held_module
from onnxremat.training import sessions
from onnxremat.training import trainer as loop
from onnxremat.training.data import Arrays, Loader, open_data
from onnxremat.training.progress import Progress
from onnxremat.training.schedules import Schedule
from onnxremat.training.trainer import Trainer
from tests.toolbox import parse
from tests.training.nets import BATCH, ROWS, arrays, net, trainer


def test_steps_that_lack_what_their_description_names() -> None:
    step = differentiate(net(), optimizer="adamw")
    for side in ("input", "output"):
        for value in getattr(step.graph, side):
            if value.name in ("x", "labels", "learning_rate"):
                continue
            made = onnx.ModelProto()
            made.CopyFrom(step)
            ends = getattr(made.graph, side)
            ends.remove(value)
            with pytest.raises(ModelError, match=f"no {side} '{value.name}'"):
                Trainer(made, net())


@pytest.mark.parametrize("how", ["type", "bytes"])
def test_weights_that_are_damaged(how: str) -> None:
    given = net()
    tensor = given.graph.initializer[0]
    if how == "type":
        tensor.data_type = 0
    else:
        tensor.raw_data = numpy_helper.to_array(tensor).tobytes()[:-1]
    with pytest.raises(ModelError, match=f"weight '{tensor.name}' is damaged"):
        Trainer(differentiate(net()), given)


def test_fit_learns_and_reports() -> None:
    seen: list[int] = []
    run = trainer()
    losses = run.fit(Arrays(arrays(), BATCH), 12, on_step=lambda p, _: seen.append(p.step))
    assert seen == list(range(1, 61))
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_resumed_run_equals_uninterrupted(tmp_path: Path, dropout: float) -> None:
    data, file = Arrays(arrays(), BATCH), tmp_path / "run.safetensors"
    whole = trainer(dropout)
    whole.fit(data, 4)
    first = trainer(dropout)

    def stop(progress: object, _: float) -> None:
        if getattr(progress, "step") == 8:  # noqa: B009
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.fit(data, 4, checkpoint=file, every=3, on_step=stop)
    second = trainer(dropout)
    second.resume(file)
    assert second.progress.step == 6
    second.fit(data, 4)
    for name, value in whole.values().items():
        np.testing.assert_array_equal(second.values()[name], value)


def test_the_loss_of_an_epoch_is_that_of_all_of_it(tmp_path: Path) -> None:
    """Also of the batches before a run was stopped in the middle of one."""
    data, file, means = Arrays(arrays(), BATCH), tmp_path / "run.safetensors", list[float]()
    losses = trainer().fit(data, 2, on_epoch=lambda progress: means.append(progress.mean))
    assert means == pytest.approx([np.mean(losses[:5]), np.mean(losses[5:])])
    first, second, rest = trainer(), trainer(), list[float]()

    def keep(progress: Progress, _: float) -> None:
        if progress.step == 9:
            shutil.copy(file, tmp_path / "kept.safetensors")

    first.fit(data, 2, checkpoint=file, every=8, on_step=keep)
    second.resume(tmp_path / "kept.safetensors")
    assert second.progress.step == 8
    second.fit(data, 2, on_epoch=lambda progress: rest.append(progress.mean))
    assert rest == means[1:]


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path: Path) -> None:
    run, file = trainer(), tmp_path / "run.safetensors"
    run.save(file)
    tensors, facts = read_tensors(file)
    write_tensors(file, tensors, {**facts, "version": "2"})
    with pytest.raises(ModelError, match="version 2"):
        run.resume(file)


def test_going_on_in_another_order_of_rows_is_said(tmp_path: Path) -> None:
    """In the middle of an epoch some rows come twice then, and others not at all."""
    file = tmp_path / "run.safetensors"

    def gone_on(first: Arrays, then: Arrays, stop: int) -> list[str]:
        def leave(progress: object, _: float) -> None:
            if getattr(progress, "step") == stop:  # noqa: B009
                raise KeyboardInterrupt

        run, other = trainer(), trainer()
        with pytest.raises(KeyboardInterrupt):
            run.fit(first, 3, on_step=leave)
        run.save(file)
        other.resume(file)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            other.fit(then, 3)
        return [str(each.message) for each in said if each.category is TrainingWarning]

    shuffled, per_epoch = Arrays(arrays(), BATCH, seed=3), ROWS // BATCH
    assert gone_on(shuffled, Arrays(arrays(), BATCH, seed=3), per_epoch + 2) == []
    (said,) = gone_on(shuffled, Arrays(arrays(), BATCH), per_epoch + 2)
    assert "epoch 2" in said
    assert f"{ROWS} rows shuffled by seed 0" in said
    assert "seed 3: some rows come twice" in said
    (said,) = gone_on(shuffled, Arrays(arrays(), BATCH, shuffle=False), 1)
    assert "as they lie" in said


def test_a_batch_is_read_where_it_lies_and_let_go() -> None:
    """Also one in another order or of another type; and one array that is written over."""
    (batch, other, *_) = Arrays(arrays(), BATCH).epoch(0)
    plain, odd, reused = trainer(), trainer(), trainer()
    expected = [plain.step(batch), plain.step(other)]
    columns = {name: np.asfortranarray(value) for name, value in batch.items()}
    doubles = {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in other.items()}
    assert [odd.step(columns), odd.step(doubles)] == expected
    held = {name: value.copy() for name, value in batch.items()}
    first = reused.step(held)
    for name, value in held.items():
        value[...] = other[name]
    assert [first, reused.step(held)] == expected
    gone = [weakref.ref(value) for value in held.values()]
    del held, value
    reused.step(batch)
    assert all(reference() is None for reference in gone)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_parsed_graph_is_held_while_a_session_is_opened(
    accumulate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes as much memory as the session's own, and would come to lie around that."""
    parsed: list[weakref.ref[object]] = []
    held: list[bool] = []

    def noted(kind: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any) -> Any:
            found = kind(*given)
            parsed.append(weakref.ref(found))
            return found

        return made

    def opened(*given: Any, **more: Any) -> Any:
        held.extend(reference() is not None for reference in parsed)
        return held_session(*given, **more)

    held_session = sessions.open_held
    monkeypatch.setattr(loop, "open_step", noted(loop.open_step))
    monkeypatch.setattr(loop, "FirstValues", noted(loop.FirstValues))
    monkeypatch.setattr(sessions, "open_held", opened)
    monkeypatch.setattr(held_module, "open_held", opened)
    graph, weights = tmp_path / "step.onnx", tmp_path / "net.onnx"
    onnx.save(differentiate(net(), optimizer="adamw", accumulate=accumulate), graph)
    onnx.save(net(), weights)
    run = Trainer(graph, weights, threads=1)
    assert len(parsed) == 2
    assert held == [False] * len(parsed) * accumulate
    assert run._session._session._model_bytes is None  # type: ignore[attr-defined]


def test_seeds_of_dropout() -> None:
    """Another seed drops other elements; the same seed the same ones."""
    losses = []
    for seed in (0, 1, 1):
        losses.append(trainer(0.4, seed=seed).fit(Arrays(arrays(), BATCH), 2))
    assert losses[1] == losses[2] != losses[0]


EPOCHS = 30
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import onnxremat
package = str(Path(onnxremat.__file__).parent)
from onnxremat.training.data import Arrays
from tests.training.nets import BATCH, arrays, trainer
if "hang" in sys.argv:  # in the middle of the fourth checkpoint
    real, left = os.fsync, [3]
    def fsync(handle):
        if not left[0]:
            os.truncate(handle, 100)
            Path(sys.argv[1] + ".hangs").touch()
            time.sleep(3600)
        left[0] -= 1
        real(handle)
    os.fsync = fsync
run, file = trainer(0.3, 2), Path(sys.argv[1])
if file.exists():
    run.resume(file)
if "kill" in sys.argv:  # after so many lines of the package, once there is a checkpoint
    lines = [int(sys.argv[-1])]
    def line(frame, event, _):
        if not lines[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        lines[0] -= event == "line" and file.exists()
        return line
    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.startswith(package) else None)
run.fit(Arrays(arrays(), BATCH), int(sys.argv[3]), checkpoint=file, every=1)
"""


class Killed:
    """Training in a process of its own that is killed and started again."""

    def __init__(self, file: Path) -> None:
        self.file, root = file, str(Path(__file__).parents[2])
        self.command = [sys.executable, "-c", SCRIPT, str(file), root, str(EPOCHS)]
        self.environment = {**os.environ, "PYTHONPATH": root}

    def kill(self, when: Path, *options: str) -> None:
        """Start it, kill it when a file is there."""
        process = subprocess.Popen([*self.command, *options], env=self.environment)
        while not when.exists():
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL

    def kill_at(self, line: int) -> int:
        """Start it, let it kill itself at a line that it runs; batches done by the checkpoint."""
        command = [*self.command, "kill", str(line)]
        ended = subprocess.run(command, env=self.environment, check=False)
        assert ended.returncode == -signal.SIGKILL
        return int(read_tensors(self.file)[1]["step"])

    def finish(self) -> None:
        """The rest without a kill, later; the result has the bits of an uninterrupted run."""
        for unfinished in self.file.parent.glob(".*"):
            os.utime(unfinished, (0, 0))
        assert subprocess.run(self.command, env=self.environment, check=False).returncode == 0
        whole = trainer(0.3, 2)
        whole.fit(Arrays(arrays(), BATCH), EPOCHS)
        final = read_tensors(self.file)[0]
        assert int(final["dropout.step"]) == EPOCHS * ROWS // BATCH
        for name, value in final.items():
            np.testing.assert_array_equal(whole.values()[name], value)
        assert [path.name for path in self.file.parent.glob("*.safetensors*")] == [self.file.name]
        assert not list(self.file.parent.glob(".*"))


def test_kills_at_random_moments_change_no_bit(tmp_path: Path) -> None:
    """Kill -9 again and again, with dropout and accumulation. Many lines of this run are those of
    checkpoints."""
    killed, draw = Killed(tmp_path / "run.safetensors"), Random(3)
    done = [killed.kill_at(draw.randrange(8000)) for _ in range(4)]
    assert 0 < done[0] < done[-1] < EPOCHS * ROWS // BATCH, done
    killed.finish()


def test_a_kill_in_the_middle_of_a_checkpoint_keeps_the_one_before(tmp_path: Path) -> None:
    killed = Killed(tmp_path / "run.safetensors")
    hangs = tmp_path / "run.safetensors.hangs"
    killed.kill(hangs, "hang")
    hangs.unlink()
    (unfinished,) = tmp_path.glob(".run.safetensors.*")
    assert read_tensors(killed.file)[1]["step"] == "3"
    drop_leftovers(killed.file)
    assert unfinished.exists()  # it might be another process's, which goes on
    killed.finish()


def test_checkpoint_is_readable_by_safetensors(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(3, np.int64)}
    write_tensors(tmp_path / "c.safetensors", values, {"step": "3"})
    found = numpy_files.load_file(tmp_path / "c.safetensors")
    assert found.keys() == values.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value)
    numpy_files.save_file(values, tmp_path / "d.safetensors")
    np.testing.assert_array_equal(read_tensors(tmp_path / "d.safetensors")[0]["a"], values["a"])


@pytest.mark.parametrize("cut", [0, 4, 20, -3])
def test_damaged_checkpoint_is_an_error(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "c.safetensors"
    write_tensors(file, {"a": np.ones(8, np.float32)})
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ModelError, match="cannot read the tensors"):
        read_tensors(file)


def test_an_epoch_whose_updates_were_all_skipped_is_no_success() -> None:
    """With a loss scale parameters stay numbers, and would be exported as if they were trained."""
    graph = differentiate(net(), optimizer="sgd", initializers=True, loss_scale=LossScale(8.0))
    data = arrays()
    once, ever = (data["x"].copy() for _ in range(2))
    once[0], ever[:] = np.nan, np.nan
    Trainer(graph, threads=1).fit(Arrays(data | {"x": once}, BATCH), 2)
    with pytest.raises(UsageError, match="epoch 1 has trained nothing: the loss is nan"):
        Trainer(graph, threads=1).fit(Arrays(data | {"x": ever}, BATCH), 2)


@pytest.mark.parametrize("where", ["w1", "mean", "w1.grad_sum"])
def test_a_checkpoint_of_no_numbers_is_not_written(tmp_path: Path, where: str) -> None:
    """Nor over a sound one, whoever asks."""
    run, file = trainer(accumulate=3), tmp_path / "c.safetensors"
    batch = next(iter(Arrays(arrays(), BATCH).epoch(0)))
    run.step(batch)
    run.save(file)
    before = file.read_bytes()
    run.state[where][...] = np.nan
    with pytest.raises(UsageError, match=f"'{where}' holds no numbers"):
        run.save(file)
    assert file.read_bytes() == before


def test_gathered_gradients_go_on_in_batches_of_their_size(tmp_path: Path) -> None:
    """A mean of means is that of all rows where batches are alike."""
    run, file = trainer(accumulate=3), tmp_path / "c.safetensors"
    batches = Arrays(arrays(), BATCH).epoch(0)
    run.step(next(batches))
    run.save(file)
    larger = net()
    for value in (*larger.graph.input, *larger.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2 * BATCH
    other = Trainer(differentiate(larger, optimizer="adamw", accumulate=3), larger, threads=1)
    before = other.values()
    with pytest.raises(ModelError, match=f"steps took {BATCH} rows, not {2 * BATCH}"):
        other.resume(file)
    for name, value in other.state.items():
        np.testing.assert_array_equal(value, before[name])
    run.update()
    run.save(file)
    other.resume(file)
    np.testing.assert_array_equal(other.state["w1"], run.state["w1"])


def test_what_another_process_holds_is_named() -> None:
    run = trainer()
    del run.state["w2"]
    with pytest.raises(UsageError, match="this process does not hold 'w2'"):
        run.export(net())


@pytest.mark.parametrize("shape", ["", "[3]"])
def test_inputs_that_arrays_give_no_rows_of(shape: str) -> None:
    text = (
        f"g (float{shape} t, float[4,2] x) => (float[4,2] y) <float[2,2] w = {{1, 2, 3, 4}}> "
        + ("{ s = ReduceSum<keepdims=0>(t) a = MatMul(x, w) y = Mul(a, s) }")
    )
    run = Trainer(differentiate(parse(text)), parse(text))
    labels = np.zeros(8, np.int64)
    data = {"x": np.zeros((8, 2), np.float32), "t": np.ones(8, np.float32), "labels": labels}
    word = "takes 3 rows of 't' and 4 of 'x'" if shape else "'t' of the step is a single number"
    with pytest.raises(UsageError, match=word):
        run.fit(Arrays(data, 4), 1)
    assert run.batch_size == (3 if shape else 4)


def test_integers_that_would_become_other_ones() -> None:
    text = (
        "g (int8[4] i, float[4,2] x) => (float[4,2] y) <float[2,2] w = {1, 2, 3, 4}, "
        "float[3,2] table = {1, 2, 3, 4, 5, 6}> "
        "{ k = Cast<to=7>(i) e = Gather(table, k) s = Add(x, e) y = MatMul(s, w) }"
    )
    run = Trainer(differentiate(parse(text)), parse(text))
    data = {"x": np.zeros((4, 2), np.float32), "labels": np.zeros(4, np.int64)}
    run.step(data | {"i": np.array([0, 1, 2, 1])})
    wrong = data | {"i": np.array([0, 1, 256, 1])}  # 256 is 0 in eight bits
    for train in (lambda: run.step(wrong), lambda: run.fit(Arrays(wrong, 4), 1)):
        with pytest.raises(UsageError, match="holds 256"):
            train()


def test_batches_as_a_list() -> None:
    rows = [*Arrays(arrays(), BATCH, shuffle=False).epoch(0)]
    one, other = trainer(), trainer()
    assert one.fit(rows, 2) == other.fit(Arrays(arrays(), BATCH, shuffle=False), 2)
    assert one.progress.epoch == 2
    for wrong, word in ((iter(rows), "ends"), (arrays(), "Arrays"), (3, "no batches")):
        with pytest.raises(UsageError) as refused:
            one.fit(wrong, 3)  # type: ignore[arg-type]
        assert word in str(refused.value)


def test_batches_whose_number_nobody_knows_are_counted() -> None:
    """As a DataLoader of an IterableDataset says of itself that it has a length, and has none."""

    class Unsized(list[Any]):
        def __len__(self) -> int:
            raise TypeError("what it reads has no len()")

    rows = [*Arrays(arrays(), BATCH, shuffle=False).epoch(0)]
    one, other = trainer(), trainer()
    assert one.fit(Unsized(rows), 2) == other.fit(rows, 2)


def test_the_last_batch_of_an_epoch_that_is_not_full_is_told_of() -> None:
    rows = [slice(0, BATCH), slice(BATCH, 2 * BATCH - 3)]
    batches = [{name: a[each] for name, a in arrays().items()} for each in rows]
    with pytest.raises(UsageError, match=r"\[5, 4\], the step wants \[8, 4\]") as caught:
        trainer().fit(batches, 1)
    assert "drop_last" in caught.value.hint


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    run = trainer()
    write_tensors(tmp_path / "c.safetensors", {"a": np.ones(8, np.float32)})
    with pytest.raises(ModelError, match="another training graph"):
        run.resume(tmp_path / "c.safetensors")


def test_export_holds_what_was_trained(tmp_path: Path) -> None:
    run = trainer()
    run.fit(Arrays(arrays(), BATCH), 20)
    file = tmp_path / "trained.onnx"
    run.export(net(), file)
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    data = arrays()
    right = 0
    for start in range(0, ROWS, BATCH):
        (scores,) = session.run(None, {"x": data["x"][start : start + BATCH]})
        right += int((scores.argmax(1) == data["labels"][start : start + BATCH]).sum())
    assert right >= 0.8 * ROWS
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(file).graph.initializer}
    for name in ("w1", "b2", "scale", "mean", "var"):
        np.testing.assert_array_equal(stored[name], run.values()[name])


def test_frozen_parameters_stay() -> None:
    graph = differentiate(net(), optimizer="sgd", freeze=["w1", "b1"])
    run = Trainer(graph, net(), threads=1)
    assert {v.input for v in run.training.parameters} == {"w2", "b2", "scale", "shift"}
    assert "w1" in {t.name for t in graph.graph.initializer}


def test_one_file_holds_its_first_values() -> None:
    graph = differentiate(net(), optimizer="adam", initializers=True)
    onnx.checker.check_model(graph)
    alone, given = Trainer(graph, threads=1), trainer()
    for name in ("w1", "b2", "var"):
        np.testing.assert_array_equal(alone.values()[name], given.values()[name])
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    data = arrays()
    feeds = {"x": data["x"][:BATCH], "labels": data["labels"][:BATCH]}
    results = session.run(None, {**feeds, "learning_rate": np.array(0.1, np.float32)})
    assert np.isfinite(float(results[0]))


def test_missing_weights_are_named() -> None:
    with pytest.raises(UsageError, match="no first value for 'w1'"):
        Trainer(differentiate(net(), optimizer="sgd"), threads=1)


def test_weights_of_another_model_are_refused() -> None:
    """Also where the step could begin with its own: nobody asked for these."""
    step = differentiate(net(), optimizer="sgd", initializers=True)
    other = {f"module.{v.input}": np.zeros(1) for v in training_of(step).parameters}
    with pytest.raises(UsageError, match=r"of another model\n .*module.*the step trains w1"):
        Trainer(step, other)
    kept = Trainer(step, {"w1": Trainer(step).state["w1"] + 1, "more": np.zeros(1)})
    np.testing.assert_array_equal(kept.state["w1"], Trainer(step).state["w1"] + 1)


def renamed(model: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    (tensor,) = (t for t in model.graph.initializer if t.name == old)
    tensor.name = new
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    return model


def test_weights_that_would_be_mixed_with_older_ones_are_refused() -> None:
    """Of a module, say, whose exporter gave some of them names of its own."""
    step = differentiate(renamed(net(), "w1", "val_3"), optimizer="sgd", initializers=True)
    weights = {t.name: numpy_helper.to_array(t) for t in net().graph.initializer}
    for given in (weights, net()):
        with pytest.raises(UsageError, match="no first value for 'val_3' in the weights given"):
            Trainer(step, given)
    some = {"w2": 2 * weights["w2"]}  # in place of the step's own
    np.testing.assert_array_equal(Trainer(step, some).state["w2"], 2 * weights["w2"])
    np.testing.assert_array_equal(Trainer(step, some).state["val_3"], weights["w1"])


def test_missing_and_misshapen_inputs_are_named() -> None:
    run = trainer()
    with pytest.raises(UsageError, match="no value for input 'labels'"):
        run.step({"x": arrays()["x"][:BATCH]})
    with pytest.raises(UsageError, match="shape"):
        run.step({"x": arrays()["x"][:3], "labels": arrays()["labels"][:3]})
    batch = {name: array[:BATCH] for name, array in arrays().items()}
    with pytest.raises(UsageError, match="by name, not a tuple"):
        run.step(tuple(batch.values()))
    batch["labels"] = np.where(np.arange(BATCH) < 2, -100, batch["labels"])
    with pytest.raises(UsageError, match=r"-100 .* no class") as caught:
        run.step(batch)
    assert "cross-entropy:ignore_index=-100" in caught.value.hint


@pytest.mark.parametrize("more", ["label", "w1", "learning_rate", "m.w1"])
def test_a_batch_with_what_the_step_does_not_take_is_refused(more: str) -> None:
    run = trainer()
    batch = {name: array[:BATCH] for name, array in arrays().items()}
    with pytest.raises(UsageError, match=f"the step takes no value for '{more}'") as caught:
        run.step({**batch, more: np.ones(BATCH, np.float32)})
    assert ("'labels'" in caught.value.hint) == (more == "label")
    assert run.progress.step == 0


def test_columns_of_data_that_the_step_does_not_read_are_left_out() -> None:
    rows = Arrays({**arrays(), "row": np.arange(ROWS)}, BATCH)
    assert trainer().fit(rows, 1) == trainer().fit(Arrays(arrays(), BATCH), 1)


def test_gradient_graph_does_not_train() -> None:
    with pytest.raises(UsageError, match="returns gradients"):
        Trainer(differentiate(net(), optimizer=None), net())


def test_data_from_npz_folder_and_function(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays())
    (tmp_path / "folder").mkdir()
    for name, value in arrays().items():
        np.save(tmp_path / "folder" / f"{name}.npy", value)
    (tmp_path / "load.py").write_text(
        "import numpy as np\n"
        "def batches(epoch):\n"
        "    for k in range(3):\n"
        "        yield {'x': np.full((8, 4), epoch + k, np.float32)}\n"
    )
    file, folder = (open_data(tmp_path / n, BATCH, seed=3) for n in ("d.npz", "folder"))
    assert len(file) == len(folder) == ROWS // BATCH
    for a, b in zip(file.epoch(2), folder.epoch(2), strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
        np.testing.assert_array_equal(a["labels"], b["labels"])
    with pytest.raises(UsageError, match="the loader made a NoneType"):
        next(Loader(lambda epoch: [None]).epoch(0))  # type: ignore[list-item]  # is no end
    loader = open_data(f"{tmp_path / 'load.py'}:batches", BATCH)
    assert isinstance(loader, Loader)
    assert len(loader) == 3
    assert [float(b["x"][0, 0]) for b in loader.epoch(5, start=1)] == [6.0, 7.0]
    kept = iter([{"x": np.zeros(3)}])  # counting its batches has ended it
    loader = Loader(lambda epoch: kept)
    assert len(loader) == 1
    with pytest.raises(UsageError, match="makes no batches"):
        list(loader.epoch(0))
    with pytest.raises(UsageError, match="no function"):
        open_data(f"{tmp_path / 'load.py'}:absent", BATCH)
    with pytest.raises(UsageError, match="cannot read"):
        open_data(tmp_path / "absent.npz", BATCH)


def test_a_module_beside_is_found_and_the_path_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows_beside.py").write_text(
        "import numpy as np\n"
        "def batches(epoch):\n"
        "    yield {'x': np.full((8, 4), epoch, np.float32)}\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    loader = open_data("rows_beside:batches", BATCH)
    assert [float(b["x"][0, 0]) for b in loader.epoch(2)] == [2.0]
    assert sys.path == before


def test_epochs_see_every_row_once_in_new_order() -> None:
    data = Arrays({"k": np.arange(ROWS)}, BATCH, seed=1)
    orders = [[*np.concatenate([b["k"] for b in data.epoch(e)])] for e in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(ROWS))
    assert orders[0] != orders[1]
    assert [b["k"].tolist() for b in data.epoch(0, 2)] == [b["k"].tolist() for b in data.epoch(0)][
        2:
    ]
    with pytest.raises(UsageError, match="do not fill"):
        Arrays({"k": np.arange(3)}, BATCH)
    with pytest.raises(UsageError, match="differ"):
        Arrays({"k": np.arange(9), "j": np.arange(8)}, BATCH)


def test_denormals_are_flushed_only_inside() -> None:
    tiny = np.full(64, 1e-39, np.float32)
    assert (tiny * np.float32(0.5)).max() > 0
    with denormals_as_zero():
        inside = (tiny * np.float32(0.5)).max()
    assert inside == 0 or sys.platform != "linux" or platform.machine() != "x86_64"
    assert (tiny * np.float32(0.5)).max() > 0


def test_schedules() -> None:
    warm = Schedule(1.0, "linear", warmup=4)
    assert [warm.at(k, 12) for k in (0, 3, 4, 8, 12)] == [0.25, 1.0, 1.0, 0.5, 0.0]
    cosine = Schedule(2.0, "cosine", floor=0.5)
    assert cosine.at(0, 10) == 2.0
    assert cosine.at(5, 10) == pytest.approx(1.25)
    assert cosine.at(10, 10) == 0.5
    assert Schedule(1.0, "step", every=3).at(7, 10) == pytest.approx(0.01)
    with pytest.raises(UsageError, match="unknown schedule"):
        Schedule(1.0, "exponential")


def test_labels_of_another_class_axis_are_told_of_it() -> None:
    """Of three axes the last one is that of the classes, as in language models; in PyTorch the
    second is."""
    model = parse("g (float[2, 3, 4] x, float[5, 3] w) => (float[2, 5, 4] y) { y = MatMul(w, x) }")
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(np.ones((5, 3), np.float32), "w"))
    batch = {"x": np.ones((2, 3, 4), np.float32), "labels": np.zeros((2, 4), np.int64)}
    run = Trainer(differentiate(model, optimizer="sgd", trainable=["w"]), model)
    with pytest.raises(UsageError, match=r"\[2, 4\], the model wants \[2, 5\]") as caught:
        run.step(batch)
    assert "cross-entropy:axis=1" in caught.value.hint
    with pytest.raises(UsageError, match="row of array 'labels'") as caught:
        run.fit(Arrays(batch, 2), 1)
    assert "cross-entropy:axis=1" in caught.value.hint
    loss = CrossEntropy(axis=1)
    run = Trainer(differentiate(model, loss=loss, optimizer="sgd", trainable=["w"]), model)
    assert run.step(batch) == pytest.approx(np.log(5))
