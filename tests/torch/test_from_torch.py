"""A module in one line, and back: ``from_torch``, ``Trainer(weights=module)``, ``to_torch``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import onnxremat
from onnxremat.errors import UsageError
from onnxremat.grad import differentiate
from onnxremat.training.state import as_array

pytestmark = pytest.mark.filterwarnings("ignore")
RATE = 0.1


class Net(nn.Module):
    """Running statistics, a frozen parameter, and two that are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.again, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.again.weight = self.first.weight
        self.out.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.again(torch.tanh(self.norm(self.first(x))))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(0)
    return (
        torch.from_numpy(random.standard_normal((8, 6))).float(),
        torch.from_numpy(random.integers(3, size=8)),
    )


def stepped(net: Net, batch: tuple[torch.Tensor, torch.Tensor], steps: int) -> list[float]:
    """The same steps by PyTorch, in place."""
    losses, optimizer = [], torch.optim.SGD([p for p in net.parameters() if p.requires_grad], RATE)
    net.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_there_and_back_is_what_pytorch_does(
    net: Net, batch: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    model = onnxremat.from_torch(net, batch[0])
    onnxremat.differentiate(model, tmp_path / "step.onnx")
    trainer = onnxremat.Trainer(tmp_path / "step.onnx", weights=net, rate=RATE, threads=1)
    (name,) = trainer.training.data
    feeds = {name: batch[0].numpy(), "labels": batch[1].numpy()}
    ours = [trainer.step(feeds) for _ in range(3)]
    twin = Net()
    twin.load_state_dict(net.state_dict())
    assert ours == pytest.approx(stepped(net, batch, 3), rel=1e-5)
    assert onnxremat.to_torch(trainer, twin) is twin
    want, found = net.state_dict(), twin.state_dict()
    assert found.keys() == want.keys()
    for key in want.keys() - {"norm.num_batches_tracked"}:
        torch.testing.assert_close(found[key], want[key], rtol=1e-4, atol=1e-6)
    assert twin.again.weight is twin.first.weight


class TwoNames(nn.Module):
    """A normalization in two places, another of the first one's running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.same, self.like = nn.ModuleDict({"norm": self.norm}), nn.BatchNorm1d(6)
        self.like.running_mean, self.like.running_var = (
            self.norm.running_mean,
            self.norm.running_var,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.like(torch.relu(self.norm(self.first(x))))
        return self.out(self.same["norm"](torch.tanh(x)))


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_buffers_with_two_names_are_one(
    batch: tuple[torch.Tensor, torch.Tensor], exporter: str
) -> None:
    """As parameters are: moved by each normalization, in turn, and copied back."""
    torch.manual_seed(0)
    net = TwoNames()
    model = onnxremat.from_torch(net, batch[0], exporter=exporter)
    trainer = onnxremat.Trainer(differentiate(model), weights=net, rate=RATE, threads=1)
    for _ in range(3):
        trainer.step({trainer.training.data[0]: batch[0].numpy(), "labels": batch[1].numpy()})
    twin = TwoNames()
    twin.load_state_dict(net.state_dict())
    stepped(net, batch, 3)
    found = onnxremat.to_torch(trainer, twin).state_dict()
    for key, want in net.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            torch.testing.assert_close(found[key], want, rtol=1e-4, atol=1e-6)


def test_a_state_dict_will_do_as_well(
    net: Net, batch: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    onnxremat.differentiate(onnxremat.from_torch(net, batch[0]), tmp_path / "step.onnx")
    with torch.no_grad():
        net.first.weight.mul_(2)
    trainer = onnxremat.Trainer(tmp_path / "step.onnx", weights=net.state_dict())
    np.testing.assert_array_equal(trainer.state["first.weight"], net.first.weight.detach().numpy())


def test_tensors_of_half_precision_are_read() -> None:
    assert as_array(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1.0, 1.0]


def test_a_module_with_other_frozen_values_is_refused_whole(
    net: Net, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    step = differentiate(onnxremat.from_torch(net, batch[0]), freeze=["first.weight"])
    trainer = onnxremat.Trainer(step, weights=net)
    trainer.step({trainer.training.data[0]: batch[0].numpy(), "labels": batch[1].numpy()})
    other = Net()
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(UsageError, match=r"'first\.weight' is frozen in the training graph"):
        onnxremat.to_torch(trainer, other)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    onnxremat.to_torch(trainer, net)


def test_another_module_is_refused_whole(net: Net) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    new = {"first.weight": np.zeros((6, 6), np.float32), "out.weight": np.zeros((2, 6), np.float32)}
    with pytest.raises(UsageError, match=r"'out\.weight'"):
        onnxremat.to_torch(new, net)
    with pytest.raises(UsageError, match="no tensor of this Net"):
        onnxremat.to_torch({"other": np.zeros(3, np.float32)}, net)
    with pytest.raises(UsageError, match=r"no torch\.nn\.Module"):
        onnxremat.to_torch(new, {})
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_program_of_the_exporter_is_optimised(
    net: Net, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    program = torch.onnx.export(net.eval(), (batch[0],), dynamo=True, verbose=False)
    found = onnxremat.optimize(
        program, budget="1x", bench_seconds=0, settings=onnxremat.Settings(target="none")
    )
    assert found.facts()["difference_to_original"] <= 1e-5


def test_what_is_no_number_in_both_is_the_same(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    class Logs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x * self.scale)

    assert onnxremat.from_torch(Logs(), batch[0], exporter="legacy").graph.node


class Passing(nn.Module):
    """Returns what it was given, and one result twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.layer(x)
        return y, x, y.relu(), y


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
@pytest.mark.parametrize("wanted", [None, ["a", "b", "c", "d"]])
def test_returned_inputs_keep_their_names(exporter: str, wanted: list[str] | None) -> None:
    x = torch.ones(2, 6)
    model = onnxremat.from_torch(Passing(), x, exporter=exporter, output_names=wanted)
    assert [value.name for value in model.graph.input] == ["x"]
    names = [value.name for value in model.graph.output]
    assert wanted in (None, names)
    assert len({*names, "x"}) == 5
