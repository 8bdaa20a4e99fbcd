"""Inputs that have values in the file: first ones of a training step, defaults of a model."""

from __future__ import annotations

import onnx

from onnxremat.errors import UsageError
from onnxremat.grad import is_step, training_of
from onnxremat.grad.exported.marks import first_of
from onnxremat.rewrite.emit import metadata
from onnxremat.session.load import options_of


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


def said_of_defaults(model: onnx.ModelProto) -> tuple[str, ...]:
    """A note where a model has inputs that need not be given: they become constants. Until ONNX's
    IR 4 every weight had to be among the inputs, which says nothing; nor do those that a plan has
    listed (:mod:`onnxremat.rewrite.unpacked`)."""
    stored = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name in stored]
    if not names or model.ir_version < 4 or is_step(model) or _is_rewritten(model):
        return ()
    return (
        f"inputs that have a value in the file are constants in a planned one: {first_of(names, 3)}"
        "; take the value out of the file for what is to be given",
    )


def _is_rewritten(model: onnx.ModelProto) -> bool:
    """It carries a plan, and is not written as it was."""
    try:
        return "plan" in metadata(model) and not options_of(model).fuses
    except UsageError:  # damaged
        return False
