"""`differentiate` and `train` as a new user meets them: results, mistakes, interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxremat.graph.tensor_files import read_tensors
from tests.cli.conftest import Command, listing
from tests.conftest import ROOT
from tests.limits import LONG
from tests.toolbox import parse
from tests.training.nets import BATCH, ROWS, arrays, net

LOADER = """
import numpy as np
data = dict(np.load("train.npz"))
def good(epoch):
    return [{name: a[k : k + 8] for name, a in data.items()} for k in (0, 8, 16)]
def raises(epoch):
    yield good(0)[0]
    raise KeyError("boom")
def none(epoch):
    return []
def tuples(epoch):
    yield 1, 2
def short(epoch):
    yield {name: a[:7] for name, a in data.items()}
def strange(epoch):
    yield {"x": data["x"][:8], "labels": data["labels"][:8] + 3}
def ragged(epoch):
    yield {"x": [[1, 2], [3]], "labels": data["labels"][:8]}
def numbered(epoch):
    yield {1: data["x"][:8], "labels": data["labels"][:8]}
def named(epoch):
    yield {"x": data["x"][:8], "labels": ["cat"] * 8}
"""


@pytest.fixture
def work(folder: Path, cli: Command) -> Path:
    """A folder with a model, its step, data and loaders."""
    onnx.save(net(0.2), "net.onnx")
    data = arrays()
    np.savez("train.npz", **data)
    np.savez("test.npz", **{name: array[:13] for name, array in data.items()})
    Path("loader.py").write_text(LOADER)
    said = cli("differentiate", "net.onnx", "step.onnx", "--optimizer", "adamw", "-q")
    assert said.code == 0, said.err
    return folder


def training(*more: object) -> tuple[object, ...]:
    given = {"--data": "train.npz", "--weights": "net.onnx", "--threads": 1}
    given.update(zip(more[::2], more[1::2], strict=True) if len(more) % 2 == 0 else ())
    return ("train", "step.onnx", *(part for pair in given.items() for part in pair))


# What it does


def test_every_weight_is_listed_and_a_guess_can_be_an_error(cli: Command, folder: Path) -> None:
    made = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[4, 6] x) => (float[4, 6] y) <float[6] gain = {1, 2, 1, 2, 1, 3},
            float[6] inv_freq = {5, 4, 1, 2, 1, 3}, float[6] lost = {1, 0, 1, 2, 1, 3}> {
        a = Mul(x, inv_freq)  r = Round(lost)  b = Mul(a, gain)  y = Add(b, r)
    }""")
    onnx.save(made, "in.onnx")
    asked = ("differentiate", "in.onnx", "out.onnx", "--loss", "mse")
    said = cli(*asked)
    rows = {line.split()[0]: line for line in said.out.splitlines() if line.strip()}
    assert "trained" in rows["gain"]
    assert "buffer" in rows["inv_freq"]
    assert "unreached" in rows["lost"]
    facts = cli(*asked, "--json").facts
    told = {row["name"]: row["status"] for row in facts["weights"]}
    assert told == {"gain": "trained", "inv_freq": "buffer", "lost": "unreached"}
    assert {text.split(":")[0] for text in facts["warnings"]} == {"inv_freq", "lost"}
    Path("out.onnx").unlink()
    cli(*asked, "--strict").assert_refused(2, "lost")
    assert listing() == ["in.onnx"]


def test_everything_at_once(cli: Command, work: Path) -> None:
    said = cli(
        *training("--validate", "test.npz", "--epochs", 6, "--rate", 0.05, "--schedule", "cosine",
                  "--warmup", 2, "--floor", 0.001, "--checkpoint", "run.safetensors", "--export",
                  "out.onnx", "--plot", "loss.svg"),
        "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    facts = said.facts
    assert (facts["steps"], facts["updates"], len(facts["losses"])) == (30, 30, 30)
    assert facts["losses"][-1] < facts["losses"][0]
    assert "epoch 6/6  loss " in said.err
    assert ", accuracy " in said.err
    # The score is that of the file that was written, dropout off, over all 13 rows.
    session = ort.InferenceSession("out.onnx", providers=["CPUExecutionProvider"])
    data = {name: np.resize(a[:13], (16, *a.shape[1:])) for name, a in arrays().items()}
    scores = np.concatenate(
        [session.run(None, {"x": data["x"][k : k + BATCH]})[0] for k in (0, BATCH)]
    )[:13]
    labels = data["labels"][:13]
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    last = facts["epochs"][-1]
    assert last["accuracy"] == pytest.approx((scores.argmax(1) == labels).mean())
    assert last["validation_loss"] == pytest.approx(-logs[range(13), labels].mean(), rel=1e-5)
    onnx.checker.check_model("out.onnx", full_check=True)


def test_accumulate(cli: Command, work: Path) -> None:
    said = cli("differentiate", "net.onnx", "step.onnx", "--accumulate", 2, "--json")
    assert said.facts["parameters"] == 6
    said = cli(*training("--epochs", 2), "--json")
    assert (said.facts["steps"], said.facts["updates"]) == (10, 6)
    said = cli(*training("--epochs", 2, "--accumulate", 5), "--json")
    assert (said.facts["steps"], said.facts["updates"]) == (10, 2)


def test_mixed_precision(cli: Command, work: Path) -> None:
    """Scale and count are in the checkpoint: a resumed run has the bits of a whole one."""
    said = cli("differentiate", "net.onnx", "step.onnx", "--precision", "fp16", "-q")
    assert said.code == 0, said.err
    losses = []
    for epochs, name in ((4, "a"), (2, "b"), (4, "b")):
        more = ("--resume",) if (epochs, name) == (4, "b") else ()
        said = cli(
            *training("--epochs", epochs, "--checkpoint", f"{name}.safetensors"), *more, "--json"
        )
        assert said.code == 0, said.err
        losses.append(said.facts["losses"])
    assert losses[0] == losses[1] + losses[2]
    assert np.mean(losses[0][-5:]) < np.mean(losses[0][:5])
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()
    state, _ = read_tensors(Path("a.safetensors"))
    assert state["loss_scale.good_updates"] - 2000 * state["loss_scale.doublings"] == 20
    said = cli("differentiate", "net.onnx", "step.onnx", "--precision", "bf16", "-q")
    assert said.code == 0, said.err
    cli(*training()).assert_refused(2, "has a kernel of", "bfloat16", "--precision fp16")


def test_resume_goes_on_and_then_has_nothing_to_do(cli: Command, work: Path) -> None:
    whole = cli(*training("--epochs", 4, "--checkpoint", "a.safetensors"))
    assert whole.code == 0, whole.err
    for epochs in (1, 3, 4):
        said = cli(*training("--epochs", epochs, "--checkpoint", "b.safetensors"), "--resume")
        assert said.code == 0, said.err
    assert Path("a.safetensors").read_bytes() == Path("b.safetensors").read_bytes()
    said = cli(
        *training("--epochs", 4, "--checkpoint", "b.safetensors", "--export", "out.onnx", "--plot",
                  "loss.png"), "--resume", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "nothing to train: 4 epochs are done" in said.err
    assert said.facts["losses"] == []
    assert Path("out.onnx").exists()
    assert not Path("loss.png").exists()
    assert "loss.png is not written" in said.err


def test_a_step_that_holds_first_values_is_compared_with_its_plan(cli: Command, work: Path) -> None:
    """A planned one lacks them: they are inputs of both."""
    made = cli("differentiate", "net.onnx", "held.onnx", "--initializers", "-q")
    assert made.code == 0, made.err
    asked = ("-b", "4MiB", "--bench-seconds", 0, "--time-limit", 1)
    assert cli("optimize", "held.onnx", "out.onnx", *asked).code == 0
    verified = cli("verify", "held.onnx", "out.onnx")
    assert verified.code == 0, verified.err
    assert cli("bench", "held.onnx", "out.onnx", "--seconds", 0.1).code == 0


def test_sources_give_the_same_training(cli: Command, work: Path) -> None:
    Path("maps").mkdir()
    for name, array in arrays().items():
        np.save(Path("maps") / f"{name}.npy", array)
    found = [cli(*training("--data", source), "--json").facts["losses"]
             for source in ("train.npz", "maps")]  # fmt: skip
    assert found[0] == found[1]
    loaders = [cli(*training("--data", source), "--json").facts["losses"]
               for source in ("loader.py:good", "loader:good")]  # fmt: skip
    assert loaders[0] == loaders[1]
    assert len(loaders[0]) == 3
    in_order = cli(*training(), "--no-shuffle", "--json").facts["losses"]
    assert in_order[:3] == loaders[0]
    assert in_order != found[0]


def test_quiet_training_says_nothing(cli: Command, work: Path) -> None:
    said = cli(*training("--schedule", "step", "--drop-every", 2, "--drop-factor", 0.5), "-q")
    assert (said.code, said.out, said.err) == (0, "", "")


# Mistakes


def data_with(**changes: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    return {n: changes[n](a) if n in changes else a for n, a in arrays().items()}


def at(row: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda labels: np.where(np.arange(ROWS) == row, value, labels)


BAD_ARRAYS = {
    "other names": ({"a": arrays()["x"], "b": arrays()["labels"]}, "no array 'x'", "'a', 'b'"),
    "labels as floats": (data_with(labels=np.float32), "'labels' is float32", "int64"),
    "label too large": (data_with(labels=at(33, 3)), "label 3", "3 classes, labels are 0 to 2"),
    "label below zero": (data_with(labels=at(33, -1)), "label -1", "labels are 0 to 2"),
    "different lengths": (data_with(x=lambda x: x[:9]), "differ in their number of rows", "has 9"),
    "other shape": (data_with(x=lambda x: x[:, :3]), "a row of array 'x'", "[3]", "wants [4]"),
    "fewer than a batch": ({n: a[:5] for n, a in arrays().items()}, "5 rows do not fill"),
    "text": (data_with(x=lambda x: x.astype(str)), "'x' is <U", "float32"),
    "a number": ({"x": np.float32(1)}, "'x' is a single number"),
    "nothing": ({}, "no arrays"),
    "no numbers": (data_with(x=lambda x: x * np.nan), "the loss is nan since step 1", "--rate"),
    "one that is none": (
        data_with(x=lambda x: np.where(np.arange(ROWS) == 9, np.nan, x.T).T),
        "holds no numbers",
        "the loss is nan since step",
        "--rate",
    ),
}


@pytest.mark.parametrize("case", list(BAD_ARRAYS))
def test_arrays_that_do_not_suit(cli: Command, work: Path, case: str) -> None:
    made, *words = BAD_ARRAYS[case]
    np.savez("bad.npz", **made)
    before = listing()
    cli(*training("--data", "bad.npz", "--checkpoint", "c.safetensors")).assert_refused(2, *words)
    assert listing() == before
    if case not in ("fewer than a batch", "no numbers", "one that is none"):
        cli(*training("--validate", "bad.npz")).assert_refused(2, *words)


def test_files_that_are_no_data(cli: Command, work: Path) -> None:
    Path("trash.npz").write_text("hello")
    Path("cut.npz").write_bytes(Path("train.npz").read_bytes()[:900])
    Path("none.npz").touch()
    np.save("one.npy", arrays()["x"])
    np.savez("objects.npz", x=np.array([{}], object))
    Path("syntax.py").write_text("def f(:")
    Path("empty").mkdir()
    for source, word in (
        ("trash.npz", "no .npz file"), ("cut.npz", "no .npz file"), ("none.npz", "no .npz file"),
        ("one.npy", "no .npz file"), ("objects.npz", "cannot read"), ("gone.npz", "No such file"),
        ("empty", "no .npy files"), ("gone.py:f", "no Python file"), ("gone:f", "no Python module"),
        ("syntax.py:f", "SyntaxError"), ("loader.py:gone", "no function 'gone'"),
        ("loader.py:raises", "KeyError: 'boom'"), ("loader.py:none", "makes no batches"),
        ("loader.py:tuples", "made a tuple"), ("loader.py:short", "shape [7, 4]"),
        ("loader.py:strange", "is no class"), ("loader.py:ragged", "ValueError"),
        ("loader.py:numbered", "no value for input 'x'"), ("loader.py:named", "wants int64"),
    ):  # fmt: skip
        cli(*training("--data", source)).assert_refused(2, word)


def test_options_that_do_not_go_together(cli: Command, work: Path) -> None:
    onnx.save(net(), "other.onnx")
    cli("differentiate", "other.onnx", "other_step.onnx", "-q")
    assert cli(*training("--checkpoint", "done.safetensors")).code == 0
    Path("trash.safetensors").write_text("trash")
    np.savez("w.npz", x=np.ones(3))
    for arguments, words in (
        (training("--checkpoint", "done.safetensors"), ("exists", "--resume")),
        ((*training("--checkpoint", "trash.safetensors"), "--resume"), ("cannot read the",)),
        ((*training(), "--resume"), ("needs a checkpoint",)),
        ((*training(), "--every", 5), ("--every needs a checkpoint",)),
        ((*training(), "--floor", 0.1), ("--floor is not for a rate that is constant", "cosine")),
        ((*training(), "--micro-batches", 8), ("--micro-batches is for pipelines",)),
        ((*training("--schedule", "cosine"), "--drop-every", 5), ("--drop-every is not", "step")),
        ((*training("--schedule", "step"), "--floor", 0), ("--floor is not", "linear")),
        ((*training("--schedule", "linear", "--rate", 0.1), "--floor", 0.2), ("above the rate",)),
        (training("--checkpoint", "gone/c.safetensors"), ("there is no folder gone",)),
        (training("--checkpoint", "."), ("is a folder",)),
        (training("--export", "net.onnx"), ("the output is the input",)),
        (training("--export", "step.onnx"), ("the output is the input",)),
        (("train", "step.onnx", "--data", "d.npz", "--weights", "step.onnx", "--export", "o.onnx"),
         ("wants the inference model", "--weights MODEL")),
        (training("--plot", "loss.pdf"), ("unknown suffix",)),
        (training("--schedule", "fast"), ("unknown schedule", "cosine")),
        (training("--accumulate", 4), ("cannot accumulate", "differentiate --accumulate 4")),
        (training("--validate", "loader.py:good"), ("npz file or a folder",)),
        (("train", "step.onnx", "--weights", "net.onnx", "--data", "loader.py:good", "--shuffle"),
         ("--shuffle is not for loader.py:good",)),
        (training("--weights", "gone.onnx"), ("no such file",)),
        (training("--rate", 1e30, "--epochs", 3), ("holds no numbers", "--rate")),
        (("train", "step.onnx", "--data", "train.npz"), ("no first value for 'w1'", "--weights")),
        (("train", "step.onnx", "--data", "train.npz", "--export", "o.onnx"), ("--weights",)),
        (("train", "step.onnx", "--data", "train.npz", "--validate", "test.npz"), ("--weights",)),
        (("train", "net.onnx", "--data", "train.npz"), ("not a training graph", "differentiate")),
        (("train", "gone.onnx", "--data", "train.npz"), ("no such file",)),
        (("train", "other_step.onnx", "--data", "train.npz", "--weights", "other.onnx",
          "--checkpoint", "done.safetensors", "--resume"), ("another training graph", "exp_avg")),
        (("differentiate", "step.onnx", "o.onnx"), ("training step already",)),
        (("differentiate", "net.onnx", "o.onnx", "--clip-norm", -1), ("clip_norm is -1",)),
        (("differentiate", "net.onnx", "o.onnx", "--precision", "fp8"),
         ("unknown precision 'fp8'", "bf16")),
        (("differentiate", "net.onnx", "o.onnx", "--optimizer", "none", "--accumulate", 2),
         ("nothing is accumulated",)),
    ):  # fmt: skip
        cli(*arguments).assert_refused(2, *words)
    assert not Path("o.onnx").exists()


# Interruptions, in a process of its own


def start(*arguments: object, limit: int = 0) -> subprocess.Popen[str]:
    """``limit``: size in bytes that no file may exceed, as if the disk were full."""
    code = "from onnxremat.cli.app import main; main()"
    if limit:
        code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit},) * 2); {code}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize("keep", ["--checkpoint", "--export", ""])
def test_interrupt_keeps_what_there_is(work: Path, keep: str) -> None:
    file = {"--checkpoint": "c.safetensors", "--export": "out.onnx"}.get(keep, "")
    process = start(*training("--epochs", 10**6, *((keep, file) if keep else ())))
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch 3/"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 130
    assert (out, "Traceback" in err) == ("", False)
    assert "error: interrupted after step" in err
    if keep == "--checkpoint":
        assert "--resume goes on" in err
        step = int(read_tensors(Path(file))[1]["step"])
        assert f"interrupted after step {step}\n" in err
    elif keep == "--export":
        onnx.checker.check_model(file, full_check=True)
    else:
        assert "nothing was kept" in err


def test_an_interrupt_after_numbers_are_lost_keeps_the_sound_checkpoint(
    cli: Command, work: Path
) -> None:
    assert cli(*training("--checkpoint", "c.safetensors")).code == 0
    before = Path("c.safetensors").read_bytes()
    Path("lost.py").write_text(
        "import itertools, os, signal, numpy as np\n"
        "def batches(epoch):\n"
        "    for k in itertools.count():\n"
        "        if k == 3: os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield {'x': np.full((8, 4), np.inf, 'f'), 'labels': np.zeros(8, 'q')}\n"
        "class Endless:\n"
        "    def __init__(self, epoch): self.made = batches(epoch)\n"
        "    def __iter__(self): return self.made\n"
        "    def __len__(self): return 1000\n"
    )
    given = training("--epochs", 10**6, "--checkpoint", "c.safetensors",
                     "--data", "lost.py:Endless", "--export", "out.onnx")  # fmt: skip
    process = start(*given, "--resume")
    _, err = process.communicate(timeout=LONG)
    assert process.returncode == 130, err
    assert "nothing was kept: 'w1' holds no numbers" in err
    assert Path("c.safetensors").read_bytes() == before
    assert not Path("out.onnx").exists()


def test_rows_that_are_not_validated_on_are_said(cli: Command, folder: Path) -> None:
    """Of a model that computes its loss, of a whole batch at once."""
    text = """g (float[4,2] x, float[4,2] z) => (float loss) <float[2,2] w = {1, 2, 3, 4}> {
        y = MatMul(x, w) d = Sub(y, z) q = Mul(d, d) loss = ReduceMean<keepdims=0>(q) }"""
    onnx.save(parse(text), "own.onnx")
    assert cli("differentiate", "own.onnx", "s.onnx", "--loss-output", "loss", "-q").code == 0
    rows = {name: np.ones((10, 2), np.float32) for name in "xz"}
    np.savez("ten.npz", **rows)
    np.savez("eight.npz", **{name: array[:8] for name, array in rows.items()})
    given = ("train", "s.onnx", "--weights", "own.onnx", "--data", "ten.npz", "--epochs", 2)
    said = cli(*given, "--validate", "ten.npz")
    assert said.code == 0, said.err
    assert said.err.count("2 of 10 rows are left out of validation") == 1
    assert "left out of validation" not in cli(*given, "--validate", "eight.npz").err


def test_a_full_disk_keeps_the_old_checkpoint(work: Path, cli: Command) -> None:
    assert cli(*training("--checkpoint", "c.safetensors")).code == 0
    before, files = Path("c.safetensors").read_bytes(), listing()
    process = start(
        *training("--checkpoint", "c.safetensors", "--epochs", 2), "--resume", limit=1000
    )
    out, err = process.communicate(timeout=LONG)
    assert (process.returncode, out) == (9, "")
    assert "error: cannot write c.safetensors" in err
    assert "the file before is untouched" in err
    assert Path("c.safetensors").read_bytes() == before
    assert listing() == files


def test_which_of_several_outputs_the_loss_is_of(cli: Command, folder: Path) -> None:
    made = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[4, 6] x) => (float[4, 6] y, float[4, 6] z) <float[6] gain = {1, 2, 1, 2, 1, 3},
            float[6] other = {5, 4, 1, 2, 1, 3}> { y = Mul(x, gain)  z = Mul(x, other) }""")
    onnx.save(made, "in.onnx")
    asked = ("differentiate", "in.onnx", "out.onnx", "--loss", "mse")
    assert "first of 2 outputs; --prediction names another (z)" in " ".join(cli(*asked).err.split())
    said = cli(*asked, "--prediction", "z")
    assert said.code == 0, said.err
    assert "outputs" not in said.err
    rows = {line.split()[0]: line for line in said.out.splitlines() if line.strip()}
    assert "trained" in rows["other"]
    assert "unreached" in rows["gain"]
    lost = cli(*asked, "--trainable", "other")
    lost.assert_refused(7, "no parameter gets a gradient", "--prediction names another")
    asked = asked[:3]
    both = ("--prediction", "z", "--loss-output", "y")
    cli(*asked, *both).assert_refused(2, "give one of --prediction and --loss-output")
    plan = ("optimize", "in.onnx", "out.onnx", "-b", "2x", "--train", "--loss", "mse", "--dry-run")
    assert "first of 2 outputs" in " ".join(cli(*plan, "--bench-seconds", 0).err.split())


def test_options_of_a_step_that_would_do_nothing_are_refused(cli: Command, folder: Path) -> None:
    made = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[4, 6] x) => (float l) <float[6] gain = {1, 2, 1, 2, 1, 3}> {
            y = Mul(x, gain)  l = ReduceMean<keepdims: int = 0>(y) }""")
    onnx.save(made, "in.onnx")
    own = ("--loss-output", "l")
    assert cli("differentiate", "in.onnx", "out.onnx", *own, "--clip-norm", 1, "-q").code == 0
    for asked in (
        ("differentiate", "in.onnx", "out.onnx"),
        ("optimize", "in.onnx", "out.onnx", "-b", "2x", "--train"),
        ("max-batch", "in.onnx", "-b", "1GiB", "--train"),
    ):
        cli(*asked, *own, "--loss", "mse").assert_refused(2, "--loss-output", "give one of")
    kept = cli("optimize", "in.onnx", "out.onnx", "-b", "2x", "--train", "--initializers")
    assert kept.code == 2  # such a file would hold constants
    for clip in ("--clip-norm", "--clip-value"):
        refused = cli("differentiate", "in.onnx", "out.onnx", *own, "--optimizer", "none", clip, 1)
        refused.assert_refused(2, "nothing is clipped")
