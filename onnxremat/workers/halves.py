"""A training step and its update as graphs, to be cut to parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from onnxremat.grad.description import Training, training_of
from onnxremat.grad.update import update_of
from onnxremat.graph.ir import Graph
from onnxremat.ort.infer import build_graph
from onnxremat.workers.layers import Key, Layers, layers_of


@dataclass(frozen=True)
class Halves:
    """A step that gathers, and its update.

    Attributes:
        step, update: without what parameters and state begin with.
        about, told: what inputs and outputs of the step and of the update mean.
    """

    step: Graph
    about: Training
    update: Graph
    told: Training

    def layers(self, cuts: Sequence[str]) -> Layers:
        """The step, cut before these ops of the forward pass."""
        sums = [self.about.updates[name] for _, name in self.told.gradients]
        return layers_of(self.step, cuts, sums, self.about.updates)

    def homes(self, layers: Layers) -> Mapping[str, Key]:
        """Sum of a gradient to the part that completes it."""
        return {name: layers.home[self.about.updates[name]] for _, name in self.told.gradients}


def halves_of(model: onnx.ModelProto, folder: Path | None) -> Halves:
    """Of a step that gathers.

    Args:
        folder: of weights that are left in files.

    Raises:
        ModelError: the model is not valid.
    """
    update = update_of(model)
    assert update is not None, "the step gathers"
    step = build_graph(_without_first_values(model), folder)
    return Halves(step, training_of(model), build_graph(update), training_of(update))


def _without_first_values(model: onnx.ModelProto) -> onnx.ModelProto:
    light, known = onnx.ModelProto(), {v.input for v in training_of(model).variables}
    light.CopyFrom(model)
    kept = [tensor for tensor in light.graph.initializer if tensor.name not in known]
    del light.graph.initializer[:]
    light.graph.initializer.extend(kept)
    return light
