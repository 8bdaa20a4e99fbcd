"""One number made of all outputs of a module, and its gradients: by autograd, and by a training
step of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.exporting.pytorch import Arguments, backward, need_torch, outputs_of, set_modes
from onnxremat.exporting.run import run_file
from onnxremat.grad import differentiate, training_of
from onnxremat.grad.description import Variable
from onnxremat.ort.infer import bind
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.state import FirstValues, input_types

TOTAL, SEED_PREFIX = "onnxremat_total", "/onnxremat_cotangent_"


@dataclass(frozen=True)
class Summed:
    """The number and its gradients.

    Attributes:
        gradients: by name; of a module, parameters without a part in the outputs are left out.
        total: all outputs, each element times a random number, summed.
        size: norm of what is summed; nothing of it is known of a file, and it is 0.
    """

    gradients: dict[str, np.ndarray]
    total: float
    size: float = 0.0


def by_autograd(module: Any, given: Arguments, resting: Mapping[str, Any]) -> Summed:
    """Batch normalization normalises by the batch where it is not frozen or at rest."""
    torch = need_torch()
    set_modes(module, batch_norm=True, resting=resting)
    square = 0.0
    with torch.enable_grad():
        total: Any = 0.0
        outputs = [y for y in outputs_of(module, given) if torch.is_tensor(y)]
        for k, y in enumerate(outputs):
            if y.is_floating_point():
                seed = torch.from_numpy(_cotangent(k, tuple(y.shape))).to(y.device)
                part = y * seed
                square += float(part.detach().double().square().sum())
                total = total + part.sum()  # of the wider type, as in ``_with_total``
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    if not named or not torch.is_tensor(total) or not total.requires_grad:
        return Summed({}, 0.0)
    found = backward(module, total, [p for _, p in named])
    set_modes(module)
    gradients = {
        name: g.detach().to_dense().cpu().numpy()
        for (name, _), g in zip(named, found, strict=True)
        if g is not None
    }
    return Summed(gradients, float(total.detach()), square**0.5)


class FileStep:
    """The training step of a file that returns gradients of the number, open in onnxruntime.

    Args:
        shapes: of the module's outputs, None for those that are not floating-point.
        inputs: by name, for their shapes.

    Attributes:
        values: what it trains, as the file has it.
        labels: what the file calls these tensors beside their names.

    Raises:
        OnnxrematError: there is no step of it.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        shapes: Sequence[tuple[int, ...] | None],
        inputs: Mapping[str, np.ndarray],
    ) -> None:
        bound = bind(model, {name: array.shape for name, array in inputs.items()})
        _add_total(bound.graph, shapes)
        step = differentiate(bound, loss_output=TOTAL, optimizer=None, dropout=False)
        about = training_of(step)
        types, first = input_types(step), FirstValues(bound, step)
        names = [name for name, _ in about.gradients]
        self.values = {name: first.of(Variable(name, "", "model"), *types[name]) for name in names}
        self.labels = {weight.name: weight.label for weight in about.weights if weight.label}
        self._data = [name for name in inputs if name in types]
        self._outputs = [about.loss, *(gradient for _, gradient in about.gradients)]
        self._session = open_session(step, session_options(Options(threads=1, pattern=False)))

    def run(self, inputs: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> Summed:
        """With these inputs and trained tensors.

        Raises:
            ModelError: onnxruntime stopped.
        """
        feeds = dict(values) | {name: inputs[name] for name in self._data}
        total, *found = run_file(self._session, self._outputs, feeds)
        return Summed(dict(zip(values, found, strict=True)), float(total))


def output_shapes(module: Any, given: Arguments) -> list[tuple[int, ...] | None]:
    """Of every tensor that the module returns; None for one that is not floating-point."""
    torch = need_torch()
    set_modes(module)
    with torch.no_grad():
        outputs = [y for y in outputs_of(module, given) if torch.is_tensor(y)]
    return [tuple(y.shape) if y.is_floating_point() else None for y in outputs]


def _cotangent(k: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(100 + k).standard_normal(shape).astype(np.float32)


def _add_total(graph: onnx.GraphProto, shapes: Sequence[tuple[int, ...] | None]) -> None:
    """One more output: all outputs, each element times a random number, summed."""
    parts = []
    for k, (value, shape) in enumerate(zip(graph.output, shapes, strict=False)):
        if shape is None:
            continue
        name = f"{SEED_PREFIX}{k}"
        # In a node, as constants of the code are, so that nobody takes it for a parameter.
        seed = numpy_helper.from_array(_cotangent(k, shape), name)
        graph.node.append(helper.make_node("Constant", [], [name], value=seed))
        wide = f"{name}_wide"
        graph.node.append(helper.make_node("Cast", [value.name], [wide], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("Mul", [wide, name], [f"{name}_part"]))
        graph.node.append(
            helper.make_node("ReduceSum", [f"{name}_part"], [f"{name}_sum"], keepdims=0)
        )
        parts.append(f"{name}_sum")
    graph.node.append(helper.make_node("Sum", parts, [TOTAL]))
    graph.output.append(helper.make_tensor_value_info(TOTAL, TensorProto.FLOAT, []))
