"""How a training step is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from onnxremat.errors import ModelError, UsageError
from onnxremat.grad.description import KEY
from onnxremat.grad.exported.given import Parameters
from onnxremat.grad.exported.marks import first_of
from onnxremat.grad.losses import Loss
from onnxremat.grad.optimizers import Optimizer
from onnxremat.grad.precision import check_precision
from onnxremat.grad.scaling import LossScale
from onnxremat.limits import whole
from onnxremat.ort.blocks import block_size


@dataclass(frozen=True)
class Settings:
    """How a training step is made.

    Attributes:
        loss: name, or a Loss with its own settings; ignored with ``loss_output``.
        prediction: output the loss compares with the target; the first by default.
        loss_output: output of a model that computes its loss itself.
        optimizer: name, or an Optimizer with its own settings; None returns gradients.
        trainable, freeze: patterns of parameter names, see
            :func:`onnxremat.grad.exported.parameters.choose_parameters`.
        parameters: what is trained, where the file cannot say: names, a state dict, the PyTorch
            module, or a file of names or of a state dict (:mod:`onnxremat.grad.exported.given`).
        tie: whether initializers with the same irregular numbers (perhaps transposed) are one
            parameter, as tied weights are after an export.
        strict: raise an error where otherwise there would be a warning.
        batch_norm: ``train`` normalises by the batch where a scale or bias is trained, ``frozen``
            uses the running statistics.
        dropout: whether Dropout drops; without, it passes everything. See
            :mod:`onnxremat.grad.dropout`.
        clip_norm: largest norm of all gradients together.
        clip_value: largest magnitude of a gradient's elements.
        accumulate: batches whose gradients are averaged before an update. Above 1 the step adds
            gradients up, and the update is a graph of its own (:func:`update_of`).
        precision: ``fp32``, or ``fp16`` or ``bf16`` for mixed precision (parameters and optimizer
            state stay float32), see :mod:`onnxremat.grad.precision`.
        loss_scale: take a factor for the loss as an input, or a :class:`LossScale` that finds its
            own size and skips updates; with ``fp16`` and an optimizer the latter is the default.
        outputs: outputs of the model that the step returns as well.
        initializers: keep first values in the file, as initializers that inputs override.
        in_place: order updates after the last reader of the old value.
        variants: rule variant per operator type; by default each op has the one that keeps least.
        portable: avoid what only the CPU provider runs (training-mode BatchNormalization,
            MaxUnpool, Col2Im).
        blocked: channels per block of this machine's blocked convolutions (``block_size()``), 0
            for a file that runs anywhere; see :mod:`onnxremat.grad.host.blocked`.
    """

    loss: str | Loss = "cross-entropy"
    prediction: str | None = None
    loss_output: str | None = None
    optimizer: str | Optimizer | None = "sgd"
    trainable: Sequence[str] | None = None
    freeze: Sequence[str] = ()
    parameters: Parameters = None
    tie: bool = True
    strict: bool = False
    batch_norm: str = "train"
    dropout: bool = True
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    precision: str = "fp32"
    loss_scale: bool | LossScale = False
    outputs: Sequence[str] = ()
    initializers: bool = False
    in_place: bool = True
    variants: Mapping[str, str] | None = None
    portable: bool = False
    blocked: int = 0

    def on_this_machine(self) -> Settings:
        """These settings with the blocked convolutions of this machine, where it has them."""
        if self.portable or self.blocked:
            return self
        try:
            return replace(self, blocked=block_size())
        except ModelError:  # an onnxruntime without them
            return self


def check_settings(model: onnx.ModelProto, settings: Settings) -> None:
    """Raises:
    UsageError: a setting out of range, or the model is a step already.
    """
    if any(entry.key == KEY for entry in model.metadata_props):
        raise UsageError(
            "the model is a training step already", hint="give the model that it was made from"
        )
    if settings.prediction is not None and settings.loss_output is not None:
        raise UsageError(
            "a prediction and an output that is the loss are named",
            why="the loss is either computed of a prediction here, or by the model",
            hint="give one of --prediction and --loss-output",
        )
    check_precision(settings.precision)
    if settings.batch_norm not in ("train", "frozen"):
        raise UsageError(
            f"unknown batch_norm '{settings.batch_norm}'", hint="it is train or frozen"
        )
    for name in ("clip_norm", "clip_value"):
        limit = getattr(settings, name)
        if limit is not None and not limit > 0:
            raise UsageError(f"{name} is {limit}, gradients cannot be that small")
        if limit is not None and settings.optimizer is None:
            raise UsageError(
                f"without an optimizer nothing is clipped, and {name} is given",
                why="the step returns the gradients as they are",
                hint="the caller clips them; or name an optimizer",
            )
    if whole(settings.accumulate, "accumulate") < 1:
        raise UsageError(f"an update cannot average {settings.accumulate} batches")
    if settings.accumulate > 1 and settings.optimizer is None:
        raise UsageError(
            "without an optimizer nothing is accumulated", hint="the caller adds gradients up"
        )


def unsaid_prediction(model: onnx.ModelProto, settings: Settings) -> str:
    """Which of a model's outputs the loss is of, where it has several and nobody said; else ""."""
    names = [value.name for value in model.graph.output]
    if len(names) < 2 or settings.prediction is not None or settings.loss_output is not None:
        return ""
    return (
        f"the loss is of '{names[0]}', the first of {len(names)} outputs; --prediction names "
        f"another ({first_of(names[1:], 3)})"
    )
