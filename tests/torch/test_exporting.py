"""``onnxremat.export`` and ``check_export``: every parameter in the file under its own name, with
PyTorch's gradient, and the module left alone."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional

import onnxremat
from onnxremat.errors import (
    ModelError,
    TrainingWarning,
    UnsupportedError,
    UsageError,
    VerificationError,
)
from onnxremat.exporting import write
from onnxremat.grad import differentiate
from onnxremat.grad.exported.listed import KEY, Parameters, parameters_of
from onnxremat.ort.session import Options, open_session, session_options

EXPORTERS = ["dynamo", "legacy"]
pytestmark = pytest.mark.filterwarnings("ignore")


class Everything(nn.Module):
    """What exporters merge, fold, tie or drop: equal values, equal weights, recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.norm1, self.norm2 = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.layer1, self.layer2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.rnn, self.drop = nn.LSTM(8, 8, batch_first=True), nn.Dropout(0.25)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.still = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("ones", torch.ones(8))
        self.out, self.unused = nn.Linear(8, 10, bias=False), nn.Linear(2, 2)
        self.out.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        h = self.layer2(self.layer1(self.words(words) + self.token * self.still)) * self.ones
        h = self.drop(self.rnn(h)[0])
        return self.out(self.norm2(self.norm1(h.transpose(1, 2))).transpose(1, 2))


class Images(nn.Module):
    """Convolutions and rectifiers, whose parameters are large enough for any exporter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)
        self.norm, self.out = nn.BatchNorm2d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.norm(self.conv2(torch.relu(self.conv1(x))))).mean((2, 3)))


class Counting(nn.Module):
    """Each call puts another tensor in the place of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return self.out(x)


WORDS = torch.arange(15).reshape(3, 5) % 10
PICTURES = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 12, 12))).float()


def stored(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def state(module: nn.Module) -> list[Any]:
    """All that an export must not change."""
    modes = [part.training for part in module.modules()]
    wanted = [p.requires_grad for p in module.parameters()]
    return [modes, wanted, {k: v.numpy().tobytes() for k, v in module.state_dict().items()}]


@dataclass
class Made:
    """An exported net in training mode, what export said, and the file."""

    net: nn.Module
    told: Parameters
    model: onnx.ModelProto


def test_buffers_that_calls_replace_are_left_as_they_were() -> None:
    net = Counting()
    before, own = state(net), net.calls
    onnxremat.from_torch(net, torch.ones(2, 5), exporter="legacy")
    assert state(net) == before
    assert net.calls is own


@pytest.fixture(scope="module", params=EXPORTERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    torch.manual_seed(0)
    net, path = Everything(), tmp_path_factory.mktemp("net") / "net.onnx"
    net.layer1.eval()
    before, random = state(net), torch.random.get_rng_state()
    told = onnxremat.export(net, WORDS, path, exporter=request.param)
    assert state(net) == before, "the module is left as it was"
    assert torch.equal(torch.random.get_rng_state(), random)
    assert [file.name for file in path.parent.iterdir()] == ["net.onnx"]
    return Made(net, told, onnx.load(path))


def test_every_parameter_is_in_the_file_under_its_name(made: Made) -> None:
    found = stored(made.model)
    for name, value in made.net.named_parameters():
        if name.startswith("unused"):
            assert name not in found
            continue
        np.testing.assert_array_equal(found[name], value.detach().numpy(), err_msg=name)
    for name in ("ones", "norm1.running_mean", "norm2.running_var"):
        np.testing.assert_array_equal(found[name], made.net.get_buffer(name).numpy())
    assert "out.weight" not in found, "tied: stored as words.weight"


def test_metadata_say_what_is_what(made: Made) -> None:
    told = made.told
    assert parameters_of(made.model) == told
    assert [e.key for e in made.model.metadata_props].count(KEY) == 1
    own = [n for n, p in made.net.named_parameters() if p.requires_grad and "unused" not in n]
    assert list(told.trained) == own
    assert told.frozen == ("still",)
    assert told.tied == {"out.weight": "words.weight"}
    assert told.unused == ("unused.weight", "unused.bias")
    assert {"ones", "norm1.running_mean"} <= set(told.buffers)


def test_dropout_and_normalization_are_single_ops(made: Made) -> None:
    norms = [n for n in made.model.graph.node if n.op_type == "BatchNormalization"]
    assert [list(n.input[1:]) for n in norms] == [
        [f"norm{k}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        for k in (1, 2)
    ]
    (drop,) = [n for n in made.model.graph.node if n.op_type == "Dropout"]
    assert len(drop.input) == 2, "as the file stands it passes everything"
    constants = {n.output[0]: n.attribute[0].t for n in made.model.graph.node if n.attribute}
    constants |= {t.name: t for t in made.model.graph.initializer}
    ratio = numpy_helper.to_array(constants[drop.input[1]])
    assert float(ratio) == 0.25


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_other_precisions_are_checked_by_their_rounding(kind: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).to(kind)
    rows = torch.randn(6, 8).to(kind)
    onnxremat.export(module, rows, tmp_path / "net.onnx", exporter="legacy")
    onnxremat.check_export(module, tmp_path / "net.onnx", rows).require()


def test_bfloat16_is_refused_with_a_reason(tmp_path: Path) -> None:
    rows = torch.ones(1, 2, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="tensors of bfloat16"):
        onnxremat.export(nn.Linear(2, 2).bfloat16(), rows, tmp_path / "net.onnx")


class Scores(nn.Module):
    """A table with sparse gradients, and scores of which some are masked; of another net those
    before."""

    def __init__(self, before: bool = False) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 5)
        self.before = before

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(5, 5, dtype=torch.bool)
        mask = ones.tril(-1) if self.before else ones.triu(1)
        return self.out(self.words(words)).masked_fill(mask, float("-inf"))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_masked_scores_and_sparse_gradients(exporter: str, tmp_path: Path) -> None:
    module, file = Scores(), tmp_path / "net.onnx"
    onnxremat.export(module, WORDS, file, exporter=exporter)
    onnxremat.check_export(module, file, WORDS).require()
    other = Scores(before=True)
    other.load_state_dict(module.state_dict())
    given = write.arguments(other, WORDS)
    with pytest.raises(VerificationError, match="not that of the module"):
        write._check(other, given, onnx.load(file), ())


def test_without_dropout(tmp_path: Path) -> None:
    onnxremat.export(Everything(), WORDS, tmp_path / "net.onnx", exporter="legacy", dropout=False)
    assert "Dropout" not in [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node]


@pytest.mark.parametrize("kind", [nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_other_dropouts_are_left_out_and_told(kind: type[nn.Module], tmp_path: Path) -> None:
    """Written in training form they would be random numbers, drawn in inference too."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), kind(0.3), nn.Flatten(), nn.Dropout(0.5))
    data = torch.randn(2, 3, 5, 5)
    with pytest.warns(TrainingWarning, match="1 dropout layers are left out: 1;"):
        onnxremat.export(net, data, tmp_path / "net.onnx", exporter="legacy")
    kinds = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert kinds.count("Dropout") == 1
    assert not any(each.startswith("Random") for each in kinds)


def test_a_check_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    net = Images().train()
    onnxremat.export(net, PICTURES, tmp_path / "net.onnx", exporter="legacy")
    before = state(net)
    onnxremat.check_export(net, tmp_path / "net.onnx", PICTURES)
    assert state(net) == before
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_open_batch(exporter: str, tmp_path: Path) -> None:
    net = Images().eval()
    path = tmp_path / "net.onnx"
    onnxremat.export(net, PICTURES[:1], path, exporter=exporter, dynamic_batch=True)
    model = onnx.load(path)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    session = open_session(model, session_options(Options()))
    x = torch.cat([PICTURES] * 3)
    (found,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, net(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_sizes_and_sequences_are_folded_and_parameters_are_not(
    exporter: str, tmp_path: Path
) -> None:
    """Sequences have no gradient; a position table is read at places that depend on the size."""

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.mix = nn.Embedding(16, 64), nn.Linear(64, 128)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.places(torch.arange(x.shape[1]))
            a, b = self.mix(self.drop(x)).split(64, 2)
            return a * torch.sigmoid(b)

    torch.manual_seed(0)
    net, x = Split(), torch.randn(2, 9, 64)
    onnxremat.export(net, x, tmp_path / "net.onnx", exporter=exporter, dynamic_batch=True)
    kinds = [n.op_type for n in onnx.load(tmp_path / "net.onnx").graph.node]
    assert "Dropout" in kinds
    assert not {"SplitToSequence", "SequenceAt"} & set(kinds)
    found = onnxremat.check_export(net, tmp_path / "net.onnx", x).require()
    assert [p.name for p in found.parameters] == ["places.weight", "mix.weight", "mix.bias"]


def test_inputs_by_name(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sum": self.mix(a) + b}

    given = {"b": torch.ones(2, 4), "a": torch.zeros(2, 4)}
    for exporter in EXPORTERS:
        net = Pair()
        onnxremat.export(net, given, tmp_path / "net.onnx", exporter=exporter)
        assert {i.name for i in onnx.load(tmp_path / "net.onnx").graph.input} == {"a", "b"}
        session = open_session(onnx.load(tmp_path / "net.onnx"), session_options(Options()))
        (found,) = session.run(None, {name: x.numpy() for name, x in given.items()})
        np.testing.assert_allclose(found, net(**given)["sum"].detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_exported_files_train_as_the_module(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Images()
    onnxremat.export(net, PICTURES, tmp_path / "net.onnx", exporter=exporter)
    for given in (PICTURES, None):
        found = onnxremat.check_export(net, tmp_path / "net.onnx", given).require()
        assert len(found.parameters) == 8
        assert all(p.trained and p.error is not None for p in found.parameters)


class Stopping(nn.Module):
    """A part whose gradient is stopped, and one of which it is in one of two places."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.back, self.gate = how, nn.Linear(6, 5), nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "no_grad":
            with torch.no_grad():
                back, gate = self.back(x), torch.sigmoid(self.gate(x))
        else:
            back, gate = self.back(x).detach(), torch.sigmoid(self.gate(x)).detach()
        return self.head(back.tanh() * gate + self.gate(x))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_where_the_module_stops_gradients(exporter: str, how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x, path = Stopping(how).train(), torch.randn(4, 6), tmp_path / "net.onnx"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = onnxremat.export(net, x, path, exporter=exporter)
    assert told.frozen == ("back.weight", "back.bias")
    warned = [str(w.message) for w in caught if issubclass(w.category, TrainingWarning)]
    found = onnxremat.check_export(net, path, x)
    if how == "detach" and exporter == "dynamo":  # the only one that writes it down
        assert found.ok, found
        assert not warned
    else:
        assert len(warned) == 1
        assert "2 parameters" in warned[0]
        assert "gate.weight" in warned[0]
        assert [p.name for p in found.parameters if p.problem] == ["gate.weight", "gate.bias"]


def test_a_stop_beside_the_same_without_one(tmp_path: Path) -> None:
    """The simplification made one of both, and every gradient of the first was twice as large."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.scale = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = self.body(x)
            spread = self.scale(x)
            still = (z.detach() - y) ** 2 * torch.exp(-spread)
            return ((z - y) ** 2 + still + spread + z.detach().long().float()).mean()

    net, x, path = Two(), (torch.randn(3, 6), torch.randn(3, 4)), tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        onnxremat.export(net, x, path, exporter="dynamo", output_names=["loss"])
        settings = onnxremat.Training(loss_output="loss")
        onnxremat.differentiate(path, tmp_path / "step.onnx", settings=settings)
    onnxremat.check_export(net, path, x).require()


def test_a_buffer_that_is_called_as_an_operator(tmp_path: Path) -> None:
    """PyTorch's exporter calls the mean of what it computes ``mean``, as the buffer."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.rand(6))
            self.std, self.body = nn.Parameter(torch.rand(6) + 1), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body((x - self.mean) / self.std).mean(1)

    net, x, path = Scaled(), torch.randn(4, 6), tmp_path / "net.onnx"
    told = onnxremat.export(net, x, path, exporter="dynamo")
    assert (told.buffers, told.trained) == (("mean",), ("std", "body.weight", "body.bias"))
    onnxremat.check_export(net, path, x).require()


class Smoothed(nn.Module):
    """Losses with smoothed labels, of every kind that PyTorch has."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.loss = nn.CrossEntropyLoss(
            torch.tensor([0.5, 1, 2, 0.3]), ignore_index=2, label_smoothing=0.15
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.body(x)
        smoothed = partial(functional.cross_entropy, label_smoothing=0.1)
        odds = smoothed(z, torch.sigmoid(x[:, :4]), self.loss.weight)
        images = smoothed(z.reshape(1, 4, 2, 3), y.reshape(1, 2, 3), reduction="none")
        return self.loss(z, y) + smoothed(z, y, reduction="sum") + odds + images.square().mean()


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_smoothed_labels_are_written_out(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, path = Smoothed(), tmp_path / "net.onnx"
    given = (torch.randn(6, 6), torch.tensor([0, 1, 2, 3, 2, 0]))
    onnxremat.export(net, given, path, exporter=exporter)
    onnxremat.check_export(net, path, given).require()


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, dy: torch.Tensor) -> torch.Tensor:
        return -dy


class Adversarial(nn.Module):
    """Two heads, to one of which gradients go reversed."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        z = Reversed.apply(y)
        return torch.cat([self.head(y), self.other(z)], 1)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_small_numbers_are_kept(exporter: str, tmp_path: Path) -> None:
    """What keeps a root from 0: without it, gradients there are no numbers."""

    class Roots(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.linear(x))
            return (h.square().sum(1) + 1e-8).sqrt()

    net, x = Roots(), torch.cat([torch.randn(2, 4), torch.zeros(1, 4)])
    nn.init.constant_(net.linear.bias, -0.1)
    onnxremat.export(net, x, tmp_path / "net.onnx", exporter=exporter)
    onnxremat.check_export(net, tmp_path / "net.onnx", x).require()


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_rows_of_padding_are_told(exporter: str, tmp_path: Path) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(6, 4, padding_idx=k) for k in (0, 2)])
            self.plain, self.out = nn.Embedding(6, 4), nn.Linear(4, 3)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            h = self.tables[0](words) * self.tables[1](words)
            return self.out((h + 0.1).tanh() * self.plain(words) + self.tables[1].weight[words])

    net, words = Words(), torch.tensor([[0, 1, 2, 0], [3, 0, 2, 5]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        onnxremat.export(net, words, tmp_path / "net.onnx", exporter=exporter)
        onnxremat.check_export(net, tmp_path / "net.onnx", words).require()


def test_tables_that_calls_scale_down_are_told(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Embedding(10, 6, max_norm=0.5), nn.Linear(6, 2))
    with pytest.warns(TrainingWarning, match=r"1 embeddings with max_norm \(0\)"):
        onnxremat.export(net, WORDS, tmp_path / "net.onnx", exporter="legacy")


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_function_with_a_backward_of_its_own_is_told(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x, path = Adversarial(), torch.randn(4, 6), tmp_path / "net.onnx"
    net.head.weight.register_hook(lambda gradient: 2 * gradient)
    before = vars(torch.autograd.Function)["apply"]
    with pytest.warns(TrainingWarning, match=r"3 parameters .* backward of their own: body.weight"):
        onnxremat.export(net, x, path, exporter=exporter)
    assert vars(torch.autograd.Function)["apply"] is before, "PyTorch is left as it was"
    found = onnxremat.check_export(net, path, x)
    names = ["body.weight", "body.bias", "head.weight"]
    assert [p.name for p in found.parameters if p.problem] == names, "the hook is there as before"
    if exporter == "dynamo":  # the other says nothing
        torch.onnx.export(net, (x,), str(path), dynamo=True, optimize=False)
        with pytest.warns(TrainingWarning, match=r"backward of their own: Reversed"):
            differentiate(onnx.load(path), loss="mse")


def by_default(net: nn.Module, x: torch.Tensor, exporter: str, path: Path) -> Path:
    """As PyTorch exports with default options, which fold parameters."""
    torch.onnx.export(net.eval(), (x,), str(path), dynamo=exporter == "dynamo")
    return path


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_renamed_parameter_is_found_by_its_values(exporter: str, tmp_path: Path) -> None:
    """A transposed weight, and gates that are reordered and joined."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.out = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.cells(x)[0])

    torch.manual_seed(0)
    net, x = Recurrent(), torch.randn(2, 7, 6)
    found = onnxremat.check_export(net, by_default(net, x, exporter, tmp_path / "n.onnx"), x)
    assert found.ok, str(found)
    rows = {p.name: p for p in found.parameters}
    assert set(rows) == {name for name, _ in net.named_parameters()}
    assert not rows["out.weight"].stored
    assert rows["cells.bias_ih_l0"].under == rows["cells.bias_hh_l0"].under != ()
    assert all(p.trained and p.error is not None and p.error < 1e-5 for p in found.parameters)
    assert "renamed  yes" in str(found)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_layers_that_begin_equal_are_no_alarm(exporter: str, tmp_path: Path) -> None:
    """Copies of recurrent layers, whose gates are joined, of linear ones, and layers of zeros,
    transposed."""

    class Equal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.mix = nn.GRU(6, 6, batch_first=True), nn.Linear(6, 6)
            self.cells2, self.mix2 = copy.deepcopy(self.cells), copy.deepcopy(self.mix)
            self.zero, self.zero2 = nn.Linear(6, 6), nn.Linear(6, 6)
            for part in (self.zero, self.zero2):
                nn.init.zeros_(part.weight)
                nn.init.zeros_(part.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.mix(self.cells(x)[0]).tanh() + self.zero(x)
            return self.mix2(self.cells2(h)[0]) + self.zero2(h)

    torch.manual_seed(0)
    net, x = Equal(), torch.randn(2, 7, 6)
    onnxremat.check_export(net, by_default(net, x, exporter, tmp_path / "n.onnx"), x).require()


def test_what_an_exporter_computed_from_a_parameter_is_not_taken_for_it(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.mix = nn.Parameter(torch.randn(8, 1)), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mix(x) @ torch.exp(self.scale)

    net, x = Scaled(), torch.randn(3, 4, 8)
    found = onnxremat.check_export(net, by_default(net, x, "dynamo", tmp_path / "n.onnx"), x)
    rows = {p.name: p for p in found.parameters}
    assert rows["mix.weight"].problem == ""
    assert "not in the file, by name or by value" in rows["scale"].problem
    assert len(found.others) == 1
    with pytest.raises(VerificationError, match=r"onnxremat\.export"):
        found.require()


def test_copies_of_a_parameter_that_drift_apart_are_found(tmp_path: Path) -> None:
    """A weight that is in the file transposed, and once more in what was folded from two."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.mix = nn.Embedding(9, 8), nn.Linear(8, 8, bias=False)
            self.more = nn.Parameter(torch.randn(8, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.words(x)
            return self.mix(h) + torch.cat([self.mix.weight[:, :3], self.more], 1)[:5]

    torch.manual_seed(0)
    net, x = Tied(), torch.arange(10).reshape(2, 5) % 9
    found = onnxremat.check_export(net, by_default(net, x, "dynamo", tmp_path / "n.onnx"), x)
    (row,) = [p for p in found.parameters if p.name == "mix.weight"]
    assert row.copied
    assert "drift apart" in row.problem


def test_a_wrong_gradient_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Images()
    onnxremat.export(net, PICTURES, tmp_path / "net.onnx", exporter="legacy")
    model = onnx.load(tmp_path / "net.onnx")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 0.3
    onnx.save(model, tmp_path / "net.onnx")
    found = onnxremat.check_export(net, tmp_path / "net.onnx", PICTURES)
    assert any("gradient is off" in problem for problem in found.problems)


def test_a_file_that_onnxruntime_does_not_run_is_told(tmp_path: Path) -> None:
    net, x, path = nn.Conv1d(3, 2, 3, padding="same", dilation=2), torch.randn(2, 3, 7), "net.onnx"
    torch.onnx.export(net, (x,), str(tmp_path / path), dynamo=False)
    assert "onnxruntime stopped" in onnxremat.check_export(net, tmp_path / path, x).failed
    with pytest.raises(ModelError, match="Dilation"):
        onnxremat.export(net, x, tmp_path / "other.onnx", exporter="legacy")
    onnxremat.export(net, x, tmp_path / "other.onnx")


def test_what_code_makes_and_detaches_is_not_warned_of(tmp_path: Path) -> None:
    """As optical flow does with the grid that it begins with: there is no gradient to stop."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.move, self.out = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.arange(6.0).expand(3, 6) + 1
            for _ in range(2):
                at = at.detach()
                left, right = (at / 2 + 1).split([3, 3], dim=1)
                at = at + self.move(torch.sin(torch.cat([right, left], dim=1)) + x)
            return self.out(at)

    path, x = tmp_path / "net.onnx", torch.randn(3, 6)
    onnxremat.export(Flow(), x, path, exporter="dynamo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        onnxremat.differentiate(path, tmp_path / "step.onnx")


def test_a_norm_that_is_called_thrice_is_not_taken_for_merged_ones(tmp_path: Path) -> None:
    """Its folded scale is one parameter: every reader says the same name."""

    class Thrice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = [self.norm(self.conv(k * x)) for k in (1.0, 2.0, 3.0)]
            return (seen[0] * seen[1] - seen[2]).mean((2, 3))

    path = tmp_path / "net.onnx"
    torch.onnx.export(Thrice(), (torch.randn(2, 3, 6, 6),), str(path), verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        onnxremat.differentiate(path, tmp_path / "step.onnx")


def test_what_neither_exporter_takes_is_told_without_noise(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            near = nn.functional.triplet_margin_loss(x, 2 * x, -x)  # not in the older one
            return torch.cdist(self.one(x), x) + near  # not in the newer one

    with pytest.raises(UnsupportedError, match=r"(?s)dynamo exporter.*legacy exporter.*both") as e:
        onnxremat.export(Distances(), torch.randn(3, 4), tmp_path / "net.onnx")
    assert "try the other" not in str(e.value)
    assert capfd.readouterr().out == ""  # the older one prints its graph


def test_nothing_is_written_when_it_fails(tmp_path: Path) -> None:
    class Random(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rand_like(x)

    class Python(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.hfft(x) if float(x.sum()) > 1e9 else torch.from_numpy(x.numpy() * 2)

    path = tmp_path / "net.onnx"
    with pytest.raises((VerificationError, UnsupportedError)):
        onnxremat.export(Random(), PICTURES, path, exporter="legacy")
    with pytest.raises(UnsupportedError, match="cannot export this Python"):
        onnxremat.export(Python(), PICTURES, path, exporter="dynamo")
    with pytest.raises(UsageError, match="no torch"):
        onnxremat.export(lambda x: x, PICTURES, path)
    with pytest.raises(UsageError, match="tensors"):
        onnxremat.export(Images(), [[1.0]], path)
    with pytest.raises(UsageError, match="unknown exporter"):
        onnxremat.export(Images(), PICTURES, path, exporter="torch")
    with pytest.raises(UsageError, match="would be named 'y'"):  # the output became y_
        onnxremat.export(Images(), PICTURES, path, input_names=["y"], output_names=["y"])
    assert not list(tmp_path.iterdir())
