"""An export that would not train as its module does is refused by the export itself, and found by
``check_export`` in files of others; what only looks like one is not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import onnxremat
from onnxremat.errors import TrainingWarning, UsageError, VerificationError
from onnxremat.exporting import write
from onnxremat.exporting.check import ExportCheck
from onnxremat.exporting.moved import holding, moved

EXPORTERS = ["dynamo", "legacy"]
X = torch.from_numpy(np.random.default_rng(0).standard_normal((4, 6))).float()
pytestmark = pytest.mark.filterwarnings("ignore")


class Scaled(nn.Module):
    """Subclasses say what becomes of y."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out, self.scale = nn.Linear(6, 5), nn.Parameter(torch.tensor(0.07))


class ReadByCode(Scaled):
    """The number that code has read is a constant, though it changes with the parameter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) * float(self.scale.detach()) * self.scale


class Added(Scaled):
    """The same, with nothing of it in any gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) * self.scale + float(self.scale.detach())


class EqualNumber(Scaled):
    """A number of the code and a parameter that are equal as they are exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.out(x)
        return (y / self.scale).softmax(-1) + (y / 0.07).softmax(-1)


class Keeping(Scaled):
    """In eval mode it keeps what it computed of a parameter, as LeViT does with its biases."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5))
        self.kept: dict[str, torch.Tensor] = {}

    def train(self, mode: bool = True) -> Keeping:
        if mode:
            self.kept.clear()
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.table * self.scale
        if not self.training and not torch.jit.is_tracing() and not torch.compiler.is_compiling():
            bias = self.kept.setdefault("bias", bias)
        return self.out(x) + bias


def deep(blocks: int = 10) -> nn.Module:
    """Rectifiers and norms over two rows: rounding alone moves gradients by more than 1e-4."""
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Linear(6, 200)]
    for _ in range(blocks):
        parts += [nn.BatchNorm1d(200), nn.ReLU(), nn.Linear(200, 200)]
    return nn.Sequential(*parts)


@pytest.mark.parametrize("kind", [ReadByCode, Added])
def test_numbers_that_code_reads_of_parameters_are_refused(
    kind: type[Scaled], tmp_path: Path
) -> None:
    path, net = tmp_path / "net.onnx", kind()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(VerificationError, match="once parameters have other values") as told:
        onnxremat.export(net, X, path, exporter="legacy")
    assert not path.exists()
    assert "check=False" in told.value.hint
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    onnxremat.export(net, X, path, exporter="legacy", check=False)
    found = onnxremat.check_export(net, path, X)
    assert "the outputs are off" in found.outputs
    assert found.outputs in str(found)
    assert ("scale" in {p.name for p in found.parameters if p.problem}) == (kind is ReadByCode)


def test_where_both_exporters_fail_the_error_names_the_parameter() -> None:
    class Item(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x) * float(self.scale) * self.scale

    with pytest.raises(VerificationError, match="scale: its gradient is off by"):
        onnxremat.from_torch(Item(), X)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_number_of_the_code_that_equals_a_parameter(exporter: str, tmp_path: Path) -> None:
    net, path = EqualNumber(), tmp_path / "net.onnx"
    onnxremat.check_export(net, _written(net, path, exporter=exporter), X).require()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (X,), str(path), dynamo=exporter == "dynamo", verbose=False)
    found = onnxremat.check_export(net, path, X)
    # The default exporter makes one of both; the older one does not.
    wrong = {p.name for p in found.parameters if p.problem}
    assert wrong == ({"out.weight", "out.bias", "scale"} if exporter == "dynamo" else set())


def test_a_parameter_in_the_place_of_a_constant_shows_with_other_values(tmp_path: Path) -> None:
    """A file in which nothing is wrong but that a constant has the place of a parameter of zero
    gradient: gradients at the values of the export are right."""

    class Cubed(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(x) + self.shift**3

        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(5))

    net, path = Cubed(), tmp_path / "net.onnx"
    model = onnx.load(_written(net, path))
    cubed = next(node for node in model.graph.node if node.op_type == "Pow")
    cubed.input[1] = "four"
    model.graph.initializer.append(numpy_helper.from_array(np.array(4.0, np.float32), "four"))
    onnx.save(model, path)
    found = onnxremat.check_export(net, path, X)
    [wrong] = [p for p in found.parameters if p.problem]
    assert wrong.name == "shift"
    assert wrong.at_export == 0.0
    assert "other values" in wrong.problem


def test_what_a_module_keeps_of_its_parameters_is_no_alarm_and_stays() -> None:
    net = Keeping().eval()
    net(X)
    kept, bias = net.kept, net.kept["bias"]
    onnxremat.from_torch(net, X, exporter="legacy")  # torch.export replaces the dict
    assert net.kept is kept
    assert kept["bias"] is bias
    with holding(net, moved({"table": net.table.detach().numpy()}, 0)):
        assert not net.kept
    assert kept["bias"] is bias


def test_rounding_in_a_deep_net_is_no_alarm_and_a_wrong_gradient_is(tmp_path: Path) -> None:
    net, x = deep(), X[:3]
    path = _written(net, tmp_path / "net.onnx", x)
    found = onnxremat.check_export(net, path, x).require()
    assert max(p.error or 0.0 for p in found.parameters) > 1e-4  # else this tests nothing
    net[3].weight.register_hook(lambda gradient: gradient * 1.5)
    found = onnxremat.check_export(net, path, x)
    assert [p.name for p in found.parameters if p.problem] == ["3.weight"]


def test_values_that_a_module_cannot_have_are_left_out() -> None:
    class Careful(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling() and float(self.out.weight.detach().sum()) != total:
                raise ValueError("these are not my weights")
            return self.out(x) * self.scale

    net = Careful()
    total = float(net.out.weight.detach().sum())
    onnxremat.from_torch(net, X, exporter="legacy")


def test_fake_quantisation_has_the_gradient_of_pytorch(tmp_path: Path) -> None:
    """Per channel and as a whole, with numbers outside the range."""

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.out = nn.Linear(6, 5), nn.Linear(5, 4)
            self.register_buffer("scales", torch.tensor([0.002, 0.004, 0.003, 0.001, 0.002]))
            self.register_buffer("zeros", torch.zeros(5, dtype=torch.int32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = torch.fake_quantize_per_channel_affine(
                self.first.weight, self.scales, self.zeros, 0, -128, 127
            )
            h = nn.functional.linear(x, weight, self.first.bias)
            return self.out(torch.fake_quantize_per_tensor_affine(h, 0.004, 120, 0, 255))

    net, path = Quantised(), tmp_path / "net.onnx"
    onnxremat.export(net, X, path, exporter="legacy")
    found = onnxremat.check_export(net, path, X).require()
    assert {p.name for p in found.parameters if p.trained} == {n for n, _ in net.named_parameters()}
    net(X).sum().backward()
    passed = net.first.weight.grad != 0
    assert passed.any()
    assert not passed.all()


def test_what_is_not_compared_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "LARGE", 100)
    with pytest.warns(TrainingWarning, match=r"not compared with the module's: .*check=True"):
        onnxremat.from_torch(EqualNumber(), X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        onnxremat.from_torch(EqualNumber(), X, check=True)
        onnxremat.from_torch(EqualNumber(), X, check=False)


def test_a_module_without_a_step_is_exported_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = ExportCheck((), (), "no gradients: Odd (no rule)")
    monkeypatch.setattr(write, "check_model", lambda *_: nothing)
    with pytest.warns(TrainingWarning, match=r"not compared with the module's: no gradients: Odd"):
        assert onnxremat.from_torch(EqualNumber(), X).graph.node


def test_what_was_traced_is_refused_with_a_reason() -> None:
    net = EqualNumber()
    with pytest.raises(UsageError, match="scripted or traced already"):
        onnxremat.from_torch(torch.jit.trace(net, X), X)


def _written(net: nn.Module, path: Path, x: torch.Tensor = X, **wanted: Any) -> Path:
    onnxremat.export(net, x, path, **wanted)
    return path
