"""Which batch normalizations normalise by the batch: those that do in PyTorch, as far as export can
tell; a step of SGD and the running statistics are PyTorch's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import onnxremat
from onnxremat import Training
from onnxremat.errors import TrainingWarning, UnsupportedError, UsageError
from onnxremat.exporting.pytorch import arguments
from onnxremat.exporting.randomness import drawn_in_training
from onnxremat.training.trainer import Trainer

RATE = 0.1


class Judged(nn.Module):
    """Images that one net makes and another one judges; nothing goes back to the former."""

    def __init__(self) -> None:
        super().__init__()
        self.made = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.judge = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        self.out = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.judge(self.made(x).detach())).square().mean()


@pytest.fixture
def net() -> Judged:
    torch.manual_seed(0)
    net = Judged()
    for norm in (net.made[1], net.judge[1]):
        nn.init.normal_(norm.running_mean)
    net.judge[2].eval()  # dropout is not PyTorch's
    return net


X = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 4))).float()


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
@pytest.mark.parametrize("resting", [(), ("made",), ("judge",)])
def test_parts_in_eval_mode_stay_so(
    net: Judged, exporter: str, resting: tuple[str, ...], tmp_path: Path
) -> None:
    for name in resting:
        getattr(net, name).eval()
    path, step = tmp_path / "net.onnx", tmp_path / "step.onnx"
    with pytest.warns(TrainingWarning, match=r"in eval mode .*: .*judge\.2"):
        onnxremat.export(net, X, path, exporter=exporter, output_names=["loss"])
    assert onnxremat.check_export(net, path, X).ok
    onnxremat.differentiate(path, step, settings=Training(loss_output="loss"))
    trainer = Trainer(step, weights=path, rate=RATE)
    wanted = net(X)
    wanted.backward()
    torch.optim.SGD(net.parameters(), RATE).step()
    batch = {name: X.numpy() for name in trainer.training.fed}
    assert trainer.step(batch) == pytest.approx(float(wanted.detach()), rel=1e-5)
    found = trainer.values()
    for name, value in net.state_dict().items():
        moves = name.startswith("judge") or "running" in name
        if moves and name.split(".")[0] not in resting and value.is_floating_point():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        assert not (resting and name.startswith(resting) and "running" in name and name in found)


def test_a_frozen_normalization_is_checked_at_rest(net: Judged, tmp_path: Path) -> None:
    class Open(Judged):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.judge(self.made(x))).square().mean()

    path = tmp_path / "net.onnx"
    net.__class__ = Open
    net.made.requires_grad_(False)
    onnxremat.export(net, X, path)
    assert onnxremat.check_export(net, path, X).ok


def test_a_backward_that_fails_in_eval_mode_is_told(tmp_path: Path) -> None:
    class Halves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
            raise AssertionError("call train() first")

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Halves.apply(super().forward(x))

    with pytest.raises(UnsupportedError, match="train"):
        onnxremat.export(Net(4, 4), X, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


class Noisy(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(4)
        self.seen = nn.MultiheadAttention(4, 2, dropout=p, batch_first=True)
        self.deep = nn.LSTM(4, 4, 2, dropout=p, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(x))[None]
        return self.deep(self.seen(x, x, x)[0])[0]


@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("dropout", [True, False])
def test_what_is_random_in_training_mode_alone_is_told(
    p: float, dropout: bool, tmp_path: Path
) -> None:
    net = Noisy(p).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        onnxremat.export(net, X, tmp_path / "net.onnx", exporter="legacy", dropout=dropout)
    said = [str(w.message) for w in caught if issubclass(w.category, TrainingWarning)]
    assert len(said) == (p > 0 and dropout)
    assert all("in seen, deep (" in text for text in said)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_a_slope_that_is_drawn_in_training_mode() -> None:
    """Its operator counts as a random one in eval mode, too."""
    net = nn.Sequential(nn.Linear(4, 4), nn.RReLU())
    assert drawn_in_training(net, arguments(net, X), {}) == ["1"]
    assert not drawn_in_training(net, arguments(net, X), {"1": net[1]})


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.w, n=4)


@pytest.mark.parametrize(
    ("net", "error", "said"),
    [(Lazy, UsageError, "'out.weight' .* no shape"), (Complex, UnsupportedError, "'w' is complex")],
)
def test_parameters_that_no_file_can_train_are_refused(
    net: Any, error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        onnxremat.export(net(), X, tmp_path / "net.onnx")


class Told(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(6, 4, scale_grad_by_freq=True), nn.Linear(4, 3)

    def forward(self, words: torch.Tensor) -> dict[str, Any]:
        known = self.table(words)
        return {"none": None, "scores": self.out(known), "known": known}


def test_gradients_by_frequency_are_told_and_results_that_are_none_left_out(tmp_path: Path) -> None:
    path, words = tmp_path / "net.onnx", torch.tensor([[1, 1, 2]])
    with pytest.warns(TrainingWarning, match=r"scale_grad_by_freq \(table\)"):
        onnxremat.export(Told(), words, path, exporter="dynamo")
    with pytest.warns(TrainingWarning, match="scale_grad_by_freq"):  # as of any file of PyTorch's
        found = onnxremat.check_export(Told(), path, words)
    assert not found.failed
