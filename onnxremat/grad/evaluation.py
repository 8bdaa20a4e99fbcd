"""Graphs that tell how good a model is while it is trained: its prediction, and a loss of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import onnx
from onnx import helper

from onnxremat.errors import UsageError
from onnxremat.grad.assembly import IR_VERSION, named, needed
from onnxremat.grad.control.run_sizes import RunSizes, same_for_all
from onnxremat.grad.control.sized_at_run import sized_at_run
from onnxremat.grad.description import StepSignature
from onnxremat.grad.exported.at_rest import at_rest
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.unfold import apply_restored
from onnxremat.grad.forward import read_forward
from onnxremat.grad.labels import without_labels
from onnxremat.grad.losses import Loss, loss_of
from onnxremat.grad.lowering.one_by_one import single_reductions
from onnxremat.grad.prediction import activation_last
from onnxremat.grad.tape import Shape, Tape
from onnxremat.grad.update import wide_of
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model

OPSET = 18


def prediction_graph(
    model: onnx.ModelProto,
    prediction: str,
    held: Collection[str],
    folder: Path | None = None,
    restored: Sequence[Restored] = (),
) -> onnx.ModelProto:
    """The part of a model, in inference mode, that makes what its loss looks at.

    Args:
        model: the model that was differentiated, all sizes bound.
        prediction: the tensor, as the description of its training step names it.
        held: initializers that become inputs, because a trainer holds their values.
        folder: where external weights lie.
        restored: what its training step says was undone of the exporter's work.

    Raises:
        UsageError: the model does not make it, or lacks a held initializer: it is another model.
    """
    model = without_labels(at_rest(apply_restored(model, restored, folder)), set())

    def build(sizes: RunSizes) -> onnx.ModelProto:
        graph = single_reductions(read_forward(model, folder, variable=held, sizes=sizes))
        made = _prediction(graph, model, prediction, held)
        return sized_at_run(made, sizes, [tensor.name for tensor in model.graph.initializer])

    return same_for_all(build)


def _prediction(
    graph: Graph, model: onnx.ModelProto, prediction: str, held: Collection[str]
) -> onnx.ModelProto:
    """The part of a forward pass of a model that makes a tensor."""
    # The graph has big weights as inputs.
    stored = {t.name: t for t in (*graph.model.graph.initializer, *model.graph.initializer)}
    for output in graph.outputs:
        if prediction not in graph.producer:
            graph = activation_last(graph, output)
    strange = sorted(name for name in held if name not in stored and name not in graph.inputs)
    if strange or prediction not in graph.producer:
        raise UsageError(
            "the model is not the one that was differentiated",
            why=f"it has no '{strange[0] if strange else prediction}'",
        )
    ops = needed(graph.ops, [prediction])
    read = {name for op in ops for name in op.reads}
    inputs = [n for n in graph.inputs if n in read and n not in stored]
    inputs += [n for n in sorted(held) if n in read and n not in inputs]
    frame = onnx.ModelProto(ir_version=max(IR_VERSION, graph.model.ir_version))
    frame.opset_import.extend(graph.model.opset_import)
    frame.graph.name = "prediction"
    for field, names in ((frame.graph.input, inputs), (frame.graph.output, [prediction])):
        field.extend(_info(graph, name) for name in names)
    frame.graph.initializer.extend(
        tensor for name, tensor in stored.items() if name in read and name not in held
    )
    return to_model(Graph(tuple(ops), graph.tensors, tuple(inputs), (prediction,), frame))


def _info(graph: Graph, name: str) -> onnx.ValueInfoProto:
    tensor = graph.tensors[name]
    return helper.make_tensor_value_info(name, tensor.dtype, tensor.shape)


def loss_for(about: StepSignature) -> Loss:
    """The loss of a training step, with its settings.

    Raises:
        UsageError: it is a loss of the user's own.
    """
    loss = loss_of(about.loss_kind, about.loss_settings)
    if loss is None:
        raise UsageError(
            f"the loss '{about.loss_kind}' is not known here", hint="evaluate with loss=Loss(...)"
        )
    return loss


def score_graph(loss: Loss, shape: Shape, dtype: int) -> onnx.ModelProto:
    """Loss, and accuracy where the loss knows right from wrong, of a prediction.

    Inputs are ``prediction`` and ``target``, outputs ``loss`` and perhaps ``accuracy``, scalars.
    """
    t = Tape({}, OPSET, ())
    t.declare("prediction", dtype, shape)
    t.declare("target", *loss.target(shape, dtype))
    with t.scope("score", "forward"):
        pair = [t.cast(name, wide_of(t.dtype(name))) for name in ("prediction", "target")]
        results = {"loss": loss.value(t, *pair)}
        accuracy = loss.accuracy(t, "prediction", "target")
    if accuracy is not None:
        results["accuracy"] = accuracy
    ops, outputs = named(t, t.ops, results)
    inputs = ("prediction", "target")
    frame = onnx.ModelProto(ir_version=IR_VERSION)
    frame.opset_import.append(helper.make_opsetid("", OPSET))
    frame.graph.name = "score"
    for field, names in ((frame.graph.input, inputs), (frame.graph.output, outputs)):
        field.extend(helper.make_tensor_value_info(n, t.dtype(n), t.shape(n)) for n in names)
    frame.graph.initializer.extend(t.initializers)
    return to_model(Graph(tuple(ops), t.tensors, inputs, tuple(outputs), frame))
