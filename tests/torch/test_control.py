"""Modules that decide as they run, exported by both exporters, against PyTorch's autograd."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from onnxremat.exporting.pytorch import arguments
from onnxremat.grad import differentiate, training_of
from onnxremat.ort.session import Options, open_session, session_options

CLOSE = 1e-5
Inputs = dict[str, torch.Tensor]


class Net(nn.Module):
    """Two layers, and one for the result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)


class Choice(Net):
    """One of two layers, as the data say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def yes(h: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.a(h)) * h

        def no(h: torch.Tensor) -> torch.Tensor:
            return self.b(torch.sin(h))

        return self.out(torch.cond(x.sum() > 0, yes, no, (torch.tanh(x),)))


class Stopped(Net):
    """A branch in which gradients end, and one in which they pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def yes(h: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.a(h)).detach() * self.b(h)

        def no(h: torch.Tensor) -> torch.Tensor:
            return self.b(torch.sin(h))

        return self.out(torch.cond(x.sum() > 0, yes, no, (torch.tanh(self.a(x)),)))


class Recurrent(Net):
    """A recurrent net as a scan."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(h: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            after = torch.tanh(self.a(h) + self.b(row))
            return after, after * 2

        last, rows = scan(step, torch.zeros(3, 4), x)
        return self.out(rows.mean(0) + last)


class Repeated(Net):
    """A layer as often as an input says."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        def more(i: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return i < n

        def body(i: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, torch.tanh(self.a(h))

        return self.out(while_loop(more, body, (torch.zeros((), dtype=torch.int64), x))[1])


class Unrolled(Repeated):
    """The same in plain PyTorch 2.13, whose own gradient of while_loop is that of its last run."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        for _ in range(int(n)):
            x = torch.tanh(self.a(x))
        return self.out(x)


class Scripted(Net):
    """A branch and a loop as TorchScript keeps them."""

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        h = torch.tanh(self.a(x)) if bool(x.sum() > 0) else self.b(x) * x
        for _ in range(n):
            h = torch.sin(self.b(h)) + x
        return self.out(h)


class Cell(nn.Module):
    """An LSTM cell while its state is small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.out = nn.LSTMCell(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c, t = torch.zeros(x.size(1), 4), torch.zeros(x.size(1), 4), 0
        while t < x.size(0) and bool(h.abs().sum() < 2.5):
            h, c = self.cell(x[t], (h, c))
            t += 1
        return self.out(h)


class Listed(Net):
    """Rows that a loop appends to a list, and what becomes of the list, as TorchScript keeps it."""

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        rows: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        h = torch.zeros(3, 4)
        for i in range(n):
            h = torch.tanh(self.a(h) + self.b(x[i]))
            rows.append(h)
            rows.append(torch.sin(h))
            others.append(x[i] * h)
        total = torch.stack(rows, 1).mean(1) + torch.cat(others, 0).view(-1, 3, 4).mean(0)
        for i in range(len(others)):
            total = total * torch.cos(others[i])
        return self.out(total + rows[-1])


class Longer(Net):
    """A tensor that a loop makes longer, and slices at its number."""

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        rows, h = torch.zeros(0, 3, 4), torch.zeros(3, 4)
        for i in range(n):
            row = self.b(x[i : i + 1].view(3, 4))
            h = torch.tanh(self.a(h) + row + x[2 * i : 2 * i + 2].mean(0))
            rows = torch.cat([rows, h.unsqueeze(0)])
        return self.out(rows.mean(0))


class Unbound(Net):
    """A list of rows, read one after the other while the state is small."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.unbind(0)
        h, t = torch.zeros(3, 4), 0
        while t < len(rows) and bool(h.abs().sum() < 2.5):
            h = torch.tanh(self.a(h) + self.b(rows[t].view(3, 4)))
            t += 1
        return self.out(h)


def exported(module: nn.Module, inputs: Inputs, dynamo: bool) -> onnx.ModelProto:
    """The file that PyTorch writes."""
    given, names = tuple(inputs.values()), {"input_names": list(inputs), "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            if dynamo:
                return torch.onnx.export(module, given, dynamo=True, **names).model_proto
            file, given = io.BytesIO(), tuple(int(v) if v.dim() == 0 else v for v in given)
            torch.onnx.export(torch.jit.script(module), given, file, dynamo=False, **names)
        finally:
            logging.disable(logging.NOTSET)
    return onnx.load_from_string(file.getvalue())


ROW = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
ROWS = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(3))
CASES = [
    pytest.param(Choice, Choice, {"x": ROW.abs()}, True, "If", id="cond-yes"),
    pytest.param(Choice, Choice, {"x": -ROW.abs()}, True, "If", id="cond-no"),
    pytest.param(Stopped, Stopped, {"x": ROW.abs()}, True, "If", id="detach"),
    pytest.param(Recurrent, Recurrent, {"x": ROWS}, True, "Scan", id="scan"),
    *(pytest.param(Repeated, Unrolled, {"x": ROW, "n": torch.tensor(n)}, True, "Loop",
                   id=f"while_loop-{n}") for n in (0, 3)),
    *(pytest.param(Scripted, Scripted, {"x": ROW, "n": torch.tensor(n)}, False, "Loop",
                   id=f"script-{n}") for n in (0, 3)),
    pytest.param(Listed, Listed, {"x": ROWS, "n": torch.tensor(4)}, False, "Loop", id="list"),
    pytest.param(Longer, Longer, {"x": ROWS, "n": torch.tensor(2)}, False, "Loop", id="longer"),
    pytest.param(Unbound, Unbound, {"x": ROWS}, False, "Loop", id="unbind"),
    pytest.param(Cell, Cell, {"x": ROWS}, False, "Loop", id="script-cell"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "judge", "inputs", "dynamo", "op"), CASES)
def test_gradients_are_those_of_autograd(
    kind: Callable[[], nn.Module], judge: Callable[[], nn.Module], inputs: Inputs, dynamo: bool,
    op: str,
) -> None:  # fmt: skip
    step = differentiate(exported(kind().eval(), inputs, dynamo), loss="mse", optimizer=None)
    assert sum(node.op_type == op for node in step.graph.node) in (2, 4)  # and none is left out
    module = judge().eval()
    with warnings.catch_warnings():  # PyTorch's own, as it compiles branches
        warnings.simplefilter("ignore")
        result = module(*inputs.values())
    target = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    loss = (result - target).square().mean()
    loss.backward()
    values = {name: p.detach().numpy() for name, p in module.named_parameters()}
    feeds = {"labels": target.numpy(), **{name: v.numpy() for name, v in inputs.items()}, **values}
    session = open_session(step, session_options(Options(threads=1)))
    names = [value.name for value in session.get_outputs()]
    feeds = {value.name: feeds[value.name] for value in session.get_inputs()}
    found = dict(zip(names, session.run(None, feeds), strict=True))
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=CLOSE)
    known = dict(training_of(step).gradients)
    for name, parameter in module.named_parameters():
        wanted = np.zeros_like(values[name]) if parameter.grad is None else parameter.grad.numpy()
        ours = found[known[name]] if name in known else np.zeros_like(wanted)
        assert np.abs(ours - wanted).max() <= CLOSE * max(np.abs(wanted).max(), 1e-3), name
    onnx.checker.check_model(step, full_check=True)


def test_examples_may_be_single_numbers() -> None:
    found = arguments(Unrolled(), (ROW, torch.tensor(3))).arrays()
    assert [array.shape for array in found.values()] == [(3, 4), ()]
