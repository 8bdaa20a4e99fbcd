"""The fine-tuning of README, by its commands: as good as PyTorch from the same start.

The network knows the digits 0 to 4, its lower layers are frozen, and it learns all ten.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat.cli.app import main
from onnxremat.training.data import Arrays
from onnxremat.training.schedules import Schedule
from tests.conftest import ROOT

pytest.importorskip("sklearn", reason="the digits come with scikit-learn, which is not installed")

BATCH, EPOCHS, RATE = 32, 10, 0.003
FROZEN = ("conv1*", "bn1*", "layer1*")
# What the PyTorch loop below reached on the 359 test images, with PyTorch 2.13.0+cpu on x86-64,
# from the network that README's first training leaves. Other orders of the data (seeds 1 to 4)
# gave 99.2 to 99.7 %.
TORCH_ACCURACY = 0.9916
SLACK = 0.012  # four images


def command(*arguments: object) -> None:
    """Run the command line in this process."""
    before, sys.argv = sys.argv, ["onnxremat", *map(str, arguments)]
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        sys.argv = before
    assert not end.value.code, arguments


def digits() -> ModuleType:
    """tools/digits.py."""
    spec = importlib.util.spec_from_file_location("digits", ROOT / "tools" / "digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, the network, and ``few.onnx``, which knows five digits."""
    place = tmp_path_factory.mktemp("digits")
    digits().write(place)
    command(
        "differentiate", place / "net.onnx", place / "first.onnx", "--dim", f"batch={BATCH}",
        "--optimizer", "adamw", "-q",
    )  # fmt: skip
    command(
        "train", place / "first.onnx", "--weights", place / "net.onnx", "--data",
        place / "few.npz", "--epochs", 5, "--rate", RATE, "--export", place / "few.onnx",
        "--threads", 1, "-q",
    )  # fmt: skip
    return place


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Path:
    """``all.onnx``, which knows all ten, and what was said of its training."""
    frozen = [part for pattern in FROZEN for part in ("--freeze", pattern)]
    command(
        "differentiate", folder / "few.onnx", folder / "step.onnx", "--dim", f"batch={BATCH}",
        "--optimizer", "adamw", *frozen, "-q",
    )  # fmt: skip
    arguments = [
        "train", folder / "step.onnx", "--weights", folder / "few.onnx", "--data",
        folder / "train.npz", "--validate", folder / "test.npz", "--epochs", EPOCHS, "--rate", RATE,
        "--schedule", "cosine", "--export", folder / "all.onnx", "--plot", folder / "loss.png",
        "--threads", 1, "--json",
    ]  # fmt: skip
    with (folder / "said.json").open("w") as file:
        before, sys.stdout = sys.stdout, file
        try:
            command(*arguments)
        finally:
            sys.stdout = before
    return folder


def weights(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.slow
def test_ten_epochs_reach_the_accuracy_of_pytorch(tuned: Path) -> None:
    score = digits().accuracy
    assert score(tuned / "few.onnx") < 0.55, "the start knows half of the digits"
    assert score(tuned / "all.onnx") >= TORCH_ACCURACY - SLACK


def test_what_is_said_is_what_the_exported_model_does(tuned: Path) -> None:
    said = json.loads((tuned / "said.json").read_text())
    assert (said["steps"], len(said["epochs"])) == (EPOCHS * (1438 // BATCH), EPOCHS)
    last = said["epochs"][-1]
    assert last["accuracy"] == pytest.approx(digits().accuracy(tuned / "all.onnx"), abs=1e-9)
    assert last["loss"] == pytest.approx(np.mean(said["losses"][-(1438 // BATCH) :]))
    assert (tuned / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_frozen_layers_are_as_they_were(tuned: Path) -> None:
    before, after = weights(tuned / "few.onnx"), weights(tuned / "all.onnx")
    onnx.checker.check_model(str(tuned / "all.onnx"), full_check=True)
    kept = {name for name in before if (before[name] == after[name]).all()}
    frozen = {name for name in before if name.startswith(tuple(p.rstrip("*") for p in FROZEN))}
    assert kept == frozen | {name for name in before if before[name].dtype != np.float32}


# ---- PyTorch -------------------------------------------------------------------------------------


def torch_net(torch: Any) -> Any:
    """The network of models/resnet.py as a module; parameters have the names of the file."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
            self.downsample = nn.Identity()
            if stride > 1:
                shortcut = nn.Conv2d(inputs, width, 1, stride, bias=False)
                self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(y + self.downsample(x))

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
            self.layer1 = nn.Sequential(Block(16, 16, 1))
            self.layer2 = nn.Sequential(Block(16, 32, 2))
            self.layer3 = nn.Sequential(Block(32, 64, 2))
            self.fc = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.bn1(self.conv1(x)))
            x = self.layer3(self.layer2(self.layer1(x)))
            return self.fc(x.mean((2, 3)))

    return Net()


def torch_tuned(torch: Any, folder: Path, seed: int = 0) -> tuple[list[float], float]:
    """The same fine-tuning in PyTorch: losses of all steps, accuracy on the test images."""
    torch.set_num_threads(1)
    net = torch_net(torch)
    start = {n: torch.tensor(a) for n, a in weights(folder / "few.onnx").items()}
    missing, unknown = net.load_state_dict(start, strict=False)
    assert not unknown
    assert all(name.endswith("num_batches_tracked") for name in missing)
    net.train()
    for frozen in (net.conv1, net.bn1, net.layer1):
        frozen.eval().requires_grad_(False)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, RATE, weight_decay=0.01)
    data = Arrays(dict(np.load(folder / "train.npz")), BATCH, seed=seed)
    rates, losses = Schedule(RATE, "cosine"), []
    for epoch in range(EPOCHS):
        for batch in data.epoch(epoch):
            optimizer.param_groups[0]["lr"] = rates.at(len(losses), EPOCHS * len(data))
            optimizer.zero_grad()
            scores = net(torch.tensor(batch["input"]))
            loss = torch.nn.functional.cross_entropy(scores, torch.tensor(batch["labels"]))
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    net.eval()
    with np.load(folder / "test.npz") as test, torch.no_grad():
        found = net(torch.tensor(test["input"])).argmax(1).numpy()
        return losses, float((found == test["labels"]).mean())


@pytest.mark.torch
def test_pytorch_from_the_same_start(tuned: Path) -> None:
    """Step for step while rounding has not grown, and the same accuracy in the end."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    losses, accuracy = torch_tuned(torch, tuned)
    ours = json.loads((tuned / "said.json").read_text())["losses"]
    np.testing.assert_allclose(ours[:8], losses[:8], rtol=2e-3)
    assert abs(digits().accuracy(tuned / "all.onnx") - accuracy) <= SLACK
    assert abs(accuracy - TORCH_ACCURACY) <= SLACK, "the number above is out of date"
