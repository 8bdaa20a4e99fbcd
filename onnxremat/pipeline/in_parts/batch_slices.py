"""A model whose batch is computed in parts, checked against the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxremat.errors import ModelError, UnsupportedError, UsageError
from onnxremat.grad import is_step
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Feeds
from onnxremat.pipeline.in_parts.against_whole import against_whole, run_parts
from onnxremat.rewrite.split_batch import split_batch

WHOLE = "leave out --split-batch"


def in_parts(
    graph: Graph,
    split: Sequence[int],
    feeds: Feeds | None,
    folder: Path | None,
    wanted: Mapping[str, Any] | None = None,
    original: Mapping[str, Any] | None = None,
) -> Graph:
    """The graph with its batch in parts; see :func:`split_batch`.

    Args:
        feeds: inputs on which both graphs must give the same.
        wanted: what the whole gives for them, where that is known.
        original: what the model as it came gives, likewise.

    Raises:
        UsageError: a training step, nothing to run on, or wrong parts.
        UnsupportedError: rows depend on each other, or the parts do not run.
    """
    _refuse_training(graph)
    if feeds is None:
        raise UsageError(
            "a batch in parts is checked by running the model", hint="leave out --no-measure"
        )
    known = wanted, original
    try:
        made = split_batch(graph, split, folder=folder)
        return _checked(graph, made, feeds, folder, known)
    except UnsupportedError as error:
        try:  # a constant that is as long as the batch may be something else
            made = split_batch(graph, split, makes_batches=False, folder=folder)
            return _checked(graph, made, feeds, folder, known)
        except UnsupportedError:
            raise error from None


def _checked(
    graph: Graph,
    model: onnx.ModelProto,
    feeds: Feeds,
    folder: Path | None,
    known: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
) -> Graph:
    """The graph of a model in parts, which has to give what the whole does.

    Args:
        known: ``wanted`` and ``original`` of :func:`against_whole`.
    """
    try:
        made, found = run_parts(model, feeds, folder)
    except ModelError as error:
        raise UnsupportedError(
            "the model does not run with its batch in parts",
            where=f"onnxruntime: {error.why or error.what}",
            why="the batch size is in a constant, or rows depend on each other", hint=WHOLE,
        ) from error  # fmt: skip
    one = against_whole(found, graph, feeds, folder, *known)
    if not one.ok:
        raise UnsupportedError(
            f"output '{one.output}' is another one with the batch in parts",
            why=f"{_other_rows(graph)}: they differ by {one.worst:.2g}",
            hint=WHOLE,
        )
    return made


def _other_rows(graph: Graph) -> str:
    """What makes rows another ones: kernels that work on fewer rows may add in another order, of
    which whole numbers make a step."""
    rounds = any("Quantize" in op.op_type or "QLinear" in op.op_type for op in graph.ops)
    or_rounded = ", or are rounded to another whole number" if rounds else ""
    return f"its rows depend on each other{or_rounded}"


def _refuse_training(graph: Graph) -> None:
    if is_step(graph.model):
        raise UsageError(
            "the batch of a training step cannot be split after the fact",
            why="its loss and gradients are sums over all rows",
            hint="--accumulate N makes a step of N smaller batches",
        )
