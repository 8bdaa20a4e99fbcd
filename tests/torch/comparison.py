"""A whole model in onnxruntime and in PyTorch, from the same weights and data.

The training graph is the one that :func:`onnxremat.grad.differentiate` makes, run by onnxruntime;
the other side is the inference model run by PyTorch operator by operator and differentiated by its
autograd. They share no code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxremat.grad import Adam, differentiate
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.trainer import Trainer
from tests.torch.graph import TorchGraph
from tests.torch.kinks import GuidedGraph, Overruled, deciding
from tests.torch.node import Tensor

# Smaller than this against the largest, a gradient is 0 in exact arithmetic: biases in front of a
# batch normalization, of attention keys.
VANISHING = 1e-6
DECAY = 0.01
# What float32 makes of the constants in a Gelu written out, and what they stand for.
ROUNDED = {np.float32(v): v for v in (math.sqrt(2.0), math.sqrt(2.0 / math.pi), 0.044715)}

Arrays = Mapping[str, np.ndarray]


def with_outputs(model: onnx.ModelProto, names: list[str], feeds: Arrays) -> onnx.ModelProto:
    """The model, returning further float tensors."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    with torch.no_grad():
        values = TorchGraph(model).run(feeds)
    made.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, values[name].shape) for name in names
    )
    return made


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 weights, inputs and results."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            wide = array.astype(np.float64)
            if array.ndim == 0:
                wide = np.float64(ROUNDED.get(np.float32(array), wide))
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(wide), tensor.name))
    for value in (*made.graph.input, *made.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in made.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return made


def weights_of(model: onnx.ModelProto, wanted: list[str]) -> dict[str, np.ndarray]:
    """Weights of the inference model that the training graph takes as inputs."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    return {name: numpy_helper.to_array(stored[name]) for name in wanted if name in stored}


def cross_entropy(graph: TorchGraph, feeds: Arrays) -> Tensor:
    """The loss of the model's first output, classes along axis 1 of images, else the last."""
    name = graph.model.graph.output[0].name
    y = graph.run(feeds, name)[name]
    labels = torch.from_numpy(feeds["labels"])
    if y.dim() != 4:
        y, labels = y.reshape(-1, y.shape[-1]), labels.reshape(-1)
    return torch.nn.functional.cross_entropy(y, labels)


@dataclass(frozen=True)
class Gradients:
    """Loss and gradient of every parameter."""

    loss: float
    of: dict[str, np.ndarray]


def by_autograd(graph: TorchGraph, feeds: Arrays, parameters: list[str]) -> Gradients:
    """PyTorch's gradients, in float64 arrays."""
    tensors = graph.require(parameters)
    loss = cross_entropy(graph, feeds)
    loss.backward()
    found = {
        name: np.zeros(t.shape) if t.grad is None else t.grad.double().numpy()
        for name, t in tensors.items()
    }
    return Gradients(float(loss.detach()), found)


def by_onnxruntime(model: onnx.ModelProto, feeds: Arrays) -> tuple[Gradients, Arrays]:
    """Our gradients, and the sides that onnxruntime took (see ``kinks.py``)."""
    sides = deciding(model)
    asked = with_outputs(model, sides, feeds)
    graph = differentiate(asked, optimizer=None, dropout=False, outputs=sides)
    session = open_session(graph, session_options(Options(threads=1, pattern=False)))
    values = weights_of(model, [value.name for value in session.get_inputs()])
    results = session.run(None, {**feeds, **values})
    found = dict(zip([o.name for o in session.get_outputs()], results, strict=True))
    return _gradients(found), {name: found[name] for name in sides}


def by_interpreting(
    model: onnx.ModelProto, feeds: Arrays, graph: onnx.ModelProto | None = None
) -> Gradients:
    """What our training graph says in float64 arithmetic, which onnxruntime's CPU provider lacks
    for convolutions: run by PyTorch operator by operator, without autograd."""
    graph = graph or differentiate(model, optimizer=None, dropout=False)
    values = weights_of(model, [value.name for value in graph.graph.input])
    with torch.no_grad():
        found = TorchGraph(graph, torch.float64).run({**feeds, **values})
    return _gradients({o.name: found[o.name].numpy() for o in graph.graph.output})


def _gradients(found: Arrays) -> Gradients:
    of = {k.removesuffix(".grad"): v for k, v in found.items() if k.endswith(".grad")}
    return Gradients(float(found["loss"]), of)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |b| in the Euclidean norm."""
    return float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b))


def moving(exact: Gradients) -> list[str]:
    """Parameters whose gradient is not 0 in exact arithmetic."""
    sizes = {name: float(np.linalg.norm(value)) for name, value in exact.of.items()}
    return [name for name, size in sizes.items() if size > VANISHING * max(sizes.values())]


@dataclass(frozen=True)
class Agreement:
    """How near the gradients of one model are, per parameter that has one.

    Attributes:
        torch: ours to PyTorch's, both in float32.
        ours, theirs: ours and PyTorch's in float32 to PyTorch's in float64.
        vanishing: the largest of ours that should be 0, against the largest gradient.
        loss: relative difference of the losses.
        overruled: sides that PyTorch in float32, and in float64, was told to take.
    """

    torch: dict[str, float]
    ours: dict[str, float]
    theirs: dict[str, float]
    vanishing: float
    loss: float
    overruled: tuple[Overruled, Overruled]


def agreement(model: onnx.ModelProto, feeds: Arrays) -> Agreement:
    """Compare the gradients of a model."""
    found, sides = by_onnxruntime(model, feeds)
    graphs = GuidedGraph(model, torch.float32), GuidedGraph(model, torch.float64)
    for graph in graphs:
        graph.sides = sides
    single, exact = (by_autograd(graph, feeds, list(found.of)) for graph in graphs)
    names = moving(exact)
    largest = max(np.linalg.norm(value) for value in exact.of.values())
    still = [np.linalg.norm(found.of[name]) for name in found.of if name not in names]
    return Agreement(
        {name: distance(found.of[name], single.of[name]) for name in names},
        {name: distance(found.of[name], exact.of[name]) for name in names},
        {name: distance(single.of[name], exact.of[name]) for name in names},
        float(max(still, default=0.0) / largest),
        abs(found.loss / single.loss - 1.0),
        (graphs[0].overruled, graphs[1].overruled),
    )


@dataclass(frozen=True)
class Finish:
    """How two trainings went.

    Attributes:
        difference: the largest relative one between the losses of a step.
        losses: ours.
        overruled: where PyTorch was told the side to take.
    """

    difference: float
    losses: list[float]
    overruled: Overruled


class Race:
    """The same training in onnxruntime and in PyTorch, on one batch.

    Args:
        optimizer: ``sgd`` or ``adamw``; the constants of both sides are PyTorch's.
        folder: for the state that every run starts from.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Arrays, optimizer: str, folder: Path) -> None:
        self.model, self.feeds, self.optimizer = model, feeds, optimizer
        self.sides = deciding(model)
        asked = with_outputs(model, self.sides, feeds)
        ours = "sgd" if optimizer == "sgd" else Adam(weight_decay=DECAY, decoupled=True)
        graph = differentiate(asked, optimizer=ours, dropout=False, outputs=self.sides)
        self.trainer = Trainer(graph, model, threads=1)
        self.start = folder / "start.safetensors"
        self.trainer.save(self.start)

    def run(self, rate: float, steps: int, *, guided: bool) -> Finish:
        """Train both; ``guided`` tells PyTorch which sides of kinks to take."""
        self.trainer.resume(self.start)
        graph = GuidedGraph(self.model, torch.float32)
        names = [variable.input for variable in self.trainer.training.parameters]
        values = list(graph.require(names).values())
        optimizer = (
            torch.optim.SGD(values, rate)
            if self.optimizer == "sgd"
            else torch.optim.AdamW(values, rate, weight_decay=DECAY)
        )
        ours, worst = [], 0.0
        for _ in range(steps):
            results = self.trainer.run(self.feeds, rate)
            ours.append(float(results[self.trainer.training.loss]))
            graph.sides = {name: results[name] for name in self.sides} if guided else {}
            optimizer.zero_grad()
            loss = cross_entropy(graph, self.feeds)
            loss.backward()
            optimizer.step()
            worst = max(worst, abs(ours[-1] / float(loss.detach()) - 1.0))
        return Finish(worst, ours, graph.overruled)
