"""Trained weights back into the module that they came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxremat.errors import UsageError
from onnxremat.exporting.pytorch import facts_of, need_module, need_torch
from onnxremat.grad.exported.frozen import check_frozen
from onnxremat.training.state import marks_of
from onnxremat.training.trainer import Trainer


def to_torch(trainer: Trainer | Mapping[str, np.ndarray], module: Any) -> Any:
    """Copy what a trainer has learned into the module, in place; returns the module::

        trainer = Trainer("step.onnx", weights=module)
        trainer.fit(batches, epochs=3)
        onnxremat.to_torch(trainer, module)  # module.state_dict() has the new values

    Parameters and running statistics that the step updates are taken by their names in the module's
    ``state_dict()``; all others, frozen ones among them, stay as they are. The optimizer's state is
    the trainer's alone.

    Args:
        trainer: a trainer, or arrays by name.
        module: of which the training step was made, by :func:`onnxremat.from_torch` or
            :func:`onnxremat.export`.

    Raises:
        MissingComponentError: PyTorch is not installed.
        UsageError: the module lacks a trained tensor, or has it in another shape, or other values
            of what is frozen, or other processes hold it; nothing is copied then.
    """
    need_module(module)
    torch = need_torch()
    found = trainer.learned() if isinstance(trainer, Trainer) else dict(trainer)
    tied = facts_of(module).tied
    held = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    new = {tied.get(name, name): value for name, value in found.items()}
    for name, value in new.items():
        shape = tuple(held[name].shape) if name in held else None
        if shape != value.shape:
            has = "has none of this name" if shape is None else f"has one of shape {shape}"
            raise UsageError(
                f"'{name}' of shape {value.shape} is no tensor of this {type(module).__name__}",
                why=f"the module {has}",
                hint="make the step of onnxremat.from_torch(module, inputs), which keeps names",
            )
    if isinstance(trainer, Trainer):
        named = marks_of({name: held[at] for name, at in tied.items() if at in held} | held)
        check_frozen(trainer.training, named, named_alike=True)
    with torch.no_grad():
        for name, value in new.items():
            held[name].copy_(torch.from_numpy(np.array(value)))
    return module
