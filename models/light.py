"""The nine ``light_*.onnx`` models inside the installed ``onnx`` package.

They are real networks of 2012 to 2017 (AlexNet, DenseNet-121, ...) at opset 9 with batch 1.
So that the files stay small, ConstantOfShape nodes make all larger weights, filled with the one
value 0.02. Every class then gets the same score, whatever the input: the shipped outputs barely
test anything. ``seeded`` draws all weights at random instead, as initializers of the real sizes
(up to 550 MiB, for VGG-19).
"""

import math
from collections.abc import Set
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from models.builder import Filler, normal, variance
from models.spec import Spec

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def names() -> tuple[str, ...]:
    """Names of the models present, such as ``light_resnet50``."""
    return tuple(sorted(path.stem for path in FOLDER.glob("light_*.onnx")))


def load(name: str, *, seeded: bool = False, seed: int = 0) -> onnx.ModelProto:
    """A model as shipped (whatever the seed), or with seeded weights."""
    model = onnx.load(FOLDER / f"{name}.onnx")
    if seeded:
        _seed_weights(model, seed)
    return model


def expected_outputs(name: str) -> list[NDArray[Any]]:
    """The outputs shipped with a model, for its weights as shipped (and any input)."""
    tensor = onnx.TensorProto()
    tensor.ParseFromString((FOLDER / f"{name}_output_0.pb").read_bytes())
    return [numpy_helper.to_array(tensor)]


def _filler(use: onnx.NodeProto, position: int, shape: tuple[int, ...], gain: float) -> Filler:
    """Values for a weight that is input ``position`` of the node ``use``, scaled by ``gain``."""
    if use.op_type in ("Conv", "Gemm") and position == 1:
        return normal(gain * math.sqrt(2 / math.prod(shape[1:])))  # Gemm weights are [out, in]
    if use.op_type == "BatchNormalization" and position in (1, 4):
        return normal(0.05 * gain, gain) if position == 1 else variance(0.05)
    return normal(0.05, 1.0 if use.op_type == "Mul" else 0.0)


def _first_use(graph: onnx.GraphProto, name: str) -> tuple[onnx.NodeProto, int]:
    """Node and input position of the first use of a tensor, looking through Unsqueeze."""
    for node in graph.node:
        if name in node.input:
            if node.op_type == "Unsqueeze":
                return _first_use(graph, node.output[0])
            return node, list(node.input).index(name)
    raise ValueError(f"nothing reads {name}")


def _gains(graph: onnx.GraphProto) -> dict[str, float]:
    """Scales below 1, by a node's output, that keep the softmax from having one winner.

    They belong to what a residual Sum adds to an identity shortcut, and to the class scores,
    the last Gemm.
    """
    normalized = {node.output[0] for node in graph.node if node.op_type == "BatchNormalization"}
    gains: dict[str, float] = {}
    for node in graph.node:
        ends = normalized.intersection(node.input) if node.op_type == "Sum" else set()
        if len(ends) == 1:
            gains[ends.pop()] = 0.3
    gemms = [node.output[0] for node in graph.node if node.op_type == "Gemm"]
    gains.update((name, 0.1) for name in gemms[-1:])
    return gains


def _seed_weights(model: onnx.ModelProto, seed: int) -> None:
    """Draws every weight anew, as an initializer in place of its ConstantOfShape node."""
    graph = model.graph
    fills = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    lengths = {node.input[0] for node in fills}
    weights = {node.output[0]: numpy_helper.to_array(tensors[node.input[0]]) for node in fills}
    weights |= {name: np.array(t.dims) for name, t in tensors.items() if t.data_type == t.FLOAT}
    read = {name for node in graph.node for name in node.input}
    gains = _gains(graph)
    for node in fills:
        graph.node.remove(node)
    _drop(graph.initializer, lengths | weights.keys())
    _drop(graph.input, lengths | weights.keys())
    for index, (name, dims) in enumerate(weights.items()):
        if name not in read:  # a leftover of the training program
            continue
        shape = tuple(int(dim) for dim in dims)
        use, position = _first_use(graph, name)
        fill = _filler(use, position, shape, gains.get(use.output[0], 1.0))
        values = fill(np.random.default_rng([seed, index]), shape)
        graph.initializer.append(numpy_helper.from_array(values, name))
    model.ir_version = max(model.ir_version, 4)  # the first whose initializers need no input


def _drop(field: Any, unwanted: Set[str]) -> None:
    """Removes the entries of a repeated field that have one of the ``unwanted`` names."""
    kept = [entry for entry in field if entry.name not in unwanted]
    del field[:]
    field.extend(kept)


SPECS = tuple(
    Spec(name, f"{name} of the onnx package", partial(load, name), {"seeded": False, "seed": 0})
    for name in names()
)
