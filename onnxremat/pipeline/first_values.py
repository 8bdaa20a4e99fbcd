"""Training steps whose file holds first values of their inputs."""

from __future__ import annotations

import onnx

from onnxremat.grad import is_step, training_of


def without_first_values(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A training step whose parameters and state are inputs only, and a note where the file held
    first values: as initializers they would be taken for constants."""
    if not is_step(model):
        return model, ()
    held = {variable.input for variable in training_of(model).variables}
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in held]
    if len(kept) == len(model.graph.initializer):
        return model, ()
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.initializer[:]
    result.graph.initializer.extend(kept)
    note = "first values of parameters and state are left out: train with --weights STEP or MODEL"
    return result, (note,)
