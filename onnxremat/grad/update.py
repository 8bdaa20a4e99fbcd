"""The optimizer's part of a training step: inside the step, or a graph of its own.

With accumulation only one run of the step in N updates. onnxruntime has no cheap way to leave out
part of a graph (an If hides its bodies from the planner and keeps what they read alive), so the
step only adds gradients up, in place, and the update is a second graph over the same buffers. It
travels in the metadata of the step, so that a step is still one file.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto as T
from onnx import helper

from onnxremat.errors import ModelError
from onnxremat.grad.assembly import IR_VERSION, named, needed, require_free
from onnxremat.grad.description import KEY as DESCRIPTION
from onnxremat.grad.description import StepSignature, Variable
from onnxremat.grad.optimizers import Optimizer, Update
from onnxremat.grad.scaling import LossScale, all_finite, kept_unless, square_sum
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model

KEY = "onnxremat.update"
RATE, SHARE = "learning_rate", "gradient_share"


@dataclass(frozen=True)
class Clip:
    """Limits of gradients: norm of all together, magnitude of an element; None for no limit."""

    norm: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class Gathered:
    """The sum of a parameter's gradients.

    Attributes:
        input: its name.
        dtype, shape: of the parameter.
    """

    input: str
    dtype: int
    shape: Shape

    @property
    def kept(self) -> int:
        """Element type of the sum: halves lose what is small beside it."""
        return wide_of(self.dtype)


def wide_of(dtype: int) -> int:
    """What sums over many elements, and updates, of an element type are computed in."""
    return T.FLOAT if dtype in (T.FLOAT16, T.BFLOAT16) else dtype


def emit_updates(
    t: Tape,
    optimizer: Optimizer,
    gradients: Mapping[str, str],
    clip: Clip,
    after: Callable[[str], Sequence[str]] = lambda _: (),
    scale: LossScale | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Emit the update of all parameters.

    Args:
        gradients: tensor per parameter.
        after: what must be made before a parameter is overwritten.
        scale: the loss scale that has been divided out of the gradients again. Where one of them
            is not finite everything keeps its value but the scale.

    Returns:
        New value per parameter, and per state tensor of the optimizer.
    """
    up = Update(t, RATE)
    # Before they are clipped: 16 bits hold neither a small factor nor what it leaves.
    wide = {name: t.cast(each, wide_of(t.dtype(name))) for name, each in gradients.items()}
    clipped = _clipped(t, wide, clip)
    optimizer.begin(up)
    made: dict[str, str] = {}
    for name, gradient in clipped.items():
        up.name, up.after = name, after(name)
        new = optimizer.update(up, t.cast(name, wide_of(t.dtype(name))), gradient)
        made[name] = t.cast(new, t.dtype(name))
    if scale is None:
        return made, up.states
    finite = all_finite(t, gradients.values())
    states = {**kept_unless(t, finite, up.states), **scale.next(t, finite)}
    return kept_unless(t, finite, made), states


def _clipped(t: Tape, gradients: dict[str, str], clip: Clip) -> dict[str, str]:
    if clip.value is not None:
        gradients = {
            name: t.op("Clip", g, t.like(-clip.value, g), t.like(clip.value, g), shape=t.shape(g))
            for name, g in gradients.items()
        }
    if clip.norm is None:
        return gradients
    norm = t.op("Sqrt", square_sum(t, gradients.values()))
    ratio = t.div(t.like(clip.norm, norm), t.add(norm, 1e-6))
    factor = t.op("Min", ratio, 1.0)
    return {n: t.mul(g, t.cast(factor, t.dtype(g))) for n, g in gradients.items()}


def update_graph(
    sums: Mapping[str, Gathered],
    optimizer: Optimizer,
    clip: Clip,
    opset: int,
    scale: LossScale | None = None,
) -> onnx.ModelProto:
    """The update of parameters from the sums of their gradients.

    Inputs are parameters, sums, optimizer state, the learning rate and ``gradient_share``, which
    the sums are multiplied with (1 / N makes them means); outputs are the new values. The sums
    are only read: who runs the graph sets them to zero.
    """
    t = Tape({}, opset, ())
    for name, each in sums.items():
        t.declare(name, each.dtype, each.shape)
        t.declare(each.input, each.kept, each.shape)
    t.declare(RATE, T.FLOAT, ())
    t.declare(SHARE, T.FLOAT, ())
    with t.scope("update", "update"):
        gradients = {}
        for name, each in sums.items():
            gradients[name] = t.mul(each.input, t.cast(SHARE, each.kept))
        made, states = emit_updates(t, optimizer, gradients, clip, scale=scale)
    require_free(states, sums)
    about = StepSignature(
        parameters=tuple(Variable(name, f"{name}.next", "model") for name in made),
        states=tuple(Variable(name, f"{name}.next", "zeros") for name in states),
        gradients=tuple((name, each.input) for name, each in sums.items()),
        rate=RATE,
        share=SHARE,
        optimizer=type(optimizer).__name__,
    )
    return _assembled(t, {f"{name}.next": value for name, value in (made | states).items()}, about)


def _assembled(t: Tape, results: Mapping[str, str], about: StepSignature) -> onnx.ModelProto:
    inputs = [*(v.input for v in about.variables), *(g for _, g in about.gradients), RATE, SHARE]
    ops, outputs = named(t, t.ops, results)
    ops = needed(ops, outputs)
    frame = onnx.ModelProto(ir_version=IR_VERSION, producer_name="onnxremat")
    frame.opset_import.append(helper.make_opsetid("", t.opset))
    frame.graph.name = "update"
    for field, names in ((frame.graph.input, inputs), (frame.graph.output, outputs)):
        field.extend(helper.make_tensor_value_info(n, t.dtype(n), t.shape(n)) for n in names)
    read = {name for op in ops for name in op.reads}
    frame.graph.initializer.extend(each for each in t.initializers if each.name in read)
    frame.metadata_props.add(key=DESCRIPTION, value=about.to_json())
    return to_model(Graph(tuple(ops), t.tensors, tuple(inputs), tuple(outputs), frame))


def pack(update: onnx.ModelProto) -> str:
    """An update graph as text, for the metadata of its step."""
    return base64.b64encode(zlib.compress(update.SerializeToString(deterministic=True), 9)).decode()


def update_of(step: onnx.ModelProto) -> onnx.ModelProto | None:
    """The update graph that belongs to a training step, None when the step updates by itself.

    Raises:
        ModelError: the metadata is damaged.
    """
    for entry in step.metadata_props:
        if entry.key == KEY:
            try:
                return onnx.ModelProto.FromString(zlib.decompress(base64.b64decode(entry.value)))
            except (ValueError, zlib.error, binascii.Error, DecodeError) as error:
                raise ModelError(
                    "the update graph in the model's metadata is unreadable", why=str(error)
                ) from error
    return None
