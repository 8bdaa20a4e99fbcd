"""Options that say how a training step is made, shared by commands."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli.asked import first_given
from onnxremat.errors import UsageError

OPTIONS = (
    "loss", "prediction", "loss_output", "optimizer", "trainable", "freeze", "parameters", "tie",
    "strict", "batch_norm", "clip_norm", "clip_value", "accumulate", "precision",
)  # fmt: skip

Loss = Annotated[
    str,
    typer.Option(
        help="cross-entropy, bce, mse, l1, huber, dice; with settings: "
        "cross-entropy:ignore_index=-100,axis=1 (see docs/gradients.md)."
    ),
]
Prediction = Annotated[
    str | None,
    typer.Option("--prediction", help="Output that the loss compares; the first by default."),
]
LossOutput = Annotated[
    str | None, typer.Option("--loss-output", help="Output of a model that computes its loss.")
]
Optimizer = Annotated[
    str,
    typer.Option(
        help="sgd, momentum, nesterov, adam, adamw, adagrad, lamb; none: gradients. With settings: "
        "adamw:weight_decay=0.1,beta2=0.95."
    ),
]
Trainable = Annotated[
    list[str] | None, typer.Option("--trainable", help="Pattern of parameters to train.")
]
Freeze = Annotated[list[str] | None, typer.Option("--freeze", help="Pattern of ones to keep.")]
Parameters = Annotated[
    Path | None,
    typer.Option(
        "--parameters",
        help="What is trained, exactly: a text file of names, or a state dict as .safetensors, "
        ".npz, .pt (its values tell where an exporter lost the names).",
    ),
]
Tie = Annotated[
    bool, typer.Option("--tie/--no-tie", help="Train equal initializers as one, or apart.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings about parameters are errors.")]
BatchNorm = Annotated[str, typer.Option(help="train (batch statistics) or frozen.")]
ClipNorm = Annotated[float | None, typer.Option(help="Largest norm of all gradients together.")]
ClipValue = Annotated[float | None, typer.Option(help="Largest magnitude of an element.")]
Accumulate = Annotated[
    int, typer.Option(min=1, help="Batches whose gradients are averaged before an update.")
]
Precision = Annotated[
    str, typer.Option(help="fp32; fp16 or bf16: mixed, with parameters in float32.")
]
Target = Annotated[
    str,
    typer.Option(
        help="portable (standard operators), or host: convolutions as this processor runs them "
        "fastest, a file for this kind of processor."
    ),
]
Initializers = Annotated[
    bool, typer.Option("--initializers", help="Keep first values of the weights in the file.")
]


def check_train(context: typer.Context, train: bool, but: Collection[str] = ()) -> None:
    """Options of a training step are for one that is made here.

    Args:
        but: those that say something of any model, as it is to run.

    Raises:
        UsageError: one of them is given, and ``--train`` is not.
    """
    option = "" if train else first_given(context, set(OPTIONS).difference(but))
    if option:
        raise UsageError(
            f"{option} says how a training step is made, and none is",
            hint="add --train; a model that is a training step already is made as it is",
        )
    check_loss(context)


def check_loss(context: typer.Context) -> None:
    """Raises:
    UsageError: a loss is named, and an output that is one.
    """
    if first_given(context, ("loss",)) and first_given(context, ("loss_output",)):
        raise UsageError(
            "--loss names a loss to compute, and --loss-output one that the model has computed",
            hint="give one of them",
        )


def optimizer_of(name: str) -> str | None:
    """None for ``none``."""
    return None if name == "none" else name
