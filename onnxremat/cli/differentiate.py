"""onnxremat differentiate IN OUT: add loss, backward pass and optimizer update."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat.cli import args, training
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError


def command(
    context: typer.Context,
    source: args.Model,
    target_file: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    loss: training.Loss = "cross-entropy",
    prediction: training.Prediction = None,
    loss_output: training.LossOutput = None,
    optimizer: training.Optimizer = "sgd",
    trainable: training.Trainable = None,
    freeze: training.Freeze = None,
    parameters: training.Parameters = None,
    tie: training.Tie = True,
    strict: training.Strict = False,
    batch_norm: training.BatchNorm = "train",
    clip_norm: training.ClipNorm = None,
    clip_value: training.ClipValue = None,
    accumulate: training.Accumulate = 1,
    precision: training.Precision = "fp32",
    initializers: training.Initializers = False,
    target: training.Target = "portable",
    shape: args.Shape = None,
    dim: args.Dim = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="A row for every initializer.")
    ] = False,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Make one training step of a model, in standard ONNX operators."""
    from onnxremat import api
    from onnxremat.grad import Settings as Training

    training.check_loss(context)
    voice = Voice(as_json, quiet)
    settings = Training(
        loss=loss, prediction=prediction, loss_output=loss_output,
        optimizer=training.optimizer_of(optimizer), trainable=trainable or None,
        freeze=freeze or (), parameters=parameters, tie=tie, strict=strict, batch_norm=batch_norm,
        clip_norm=clip_norm, clip_value=clip_value,
        accumulate=accumulate, initializers=initializers, precision=precision,
    )  # fmt: skip
    if target not in ("portable", "host"):
        raise UsageError(f"unknown target '{target}'", hint="it is portable or host")
    settings = settings.on_this_machine() if target == "host" else settings
    with voice.working():
        voice.say("adding the backward pass")
        facts = api.differentiate(
            source, target_file, settings=settings, shapes=args.parse_shapes(shape),
            dims=args.parse_dims(dim),
        )  # fmt: skip
    from onnxremat.grad import Weight
    from onnxremat.report.weights import unsaid_note, weights_table

    weights = [Weight(**row) for row in facts["weights"]]
    voice.table(weights_table(weights, verbose))
    for left_open in (facts["unsaid_prediction"], unsaid_note(weights)):
        if left_open:
            voice.note(left_open)
    voice.note(
        f"{facts['nodes']} nodes, {facts['parameters']} parameters, loss '{facts['loss']}', "
        f"target '{facts['target']}'"
    )
    voice.note(f"wrote {target_file}")
    if as_json:
        voice.result(facts)
