"""Nodes that make what a file stores of the parameter that is trained, and the reverse: what the
file stores, of the values that the parameter has now. See :mod:`onnxremat.grad.exported.unfold`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.grad.exported.computed import NUMBER, PLAIN, SIZES, computed, computed_again
from onnxremat.grad.exported.elements import helpers_of, mask, pick, retaken
from onnxremat.grad.exported.parts import BOUNDS, cut, uncut
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.stored import Stored, made_by

HELPERS = ("shape", *BOUNDS, NUMBER, SIZES)  # what nodes made here read, after the name


def stored_again(
    entry: Restored, value: np.ndarray, node: onnx.NodeProto, stored: Stored
) -> np.ndarray:
    """What the file holds in place of a value that a parameter has.

    Args:
        node: the last of those that make it.
        stored: of the model with these nodes.
    """
    if entry.how == "tie":
        value = value.transpose(entry.axes)
    elif entry.how == "expand":
        value = np.broadcast_to(value, stored.value(node.input[1]))
    elif entry.how == "part":
        value = uncut(entry, value)
    elif entry.how == "computed":
        value = computed_again(entry, value)
        value = value.reshape(stored.value(node.input[1])) if node.op_type == "Reshape" else value
    elif entry.how == "fill":
        value = np.insert(value, [entry.axes[0]] * (entry.axes[1] - entry.axes[0]), 0)
    else:
        value = retaken(entry, value, stored)
    return value


Maker = Callable[
    [Restored, Stored, list[onnx.NodeProto], list[onnx.TensorProto]],
    None,
]


def _tied(
    entry: Restored, _: Stored, nodes: list[onnx.NodeProto], __: list[onnx.TensorProto]
) -> None:
    straight = entry.axes == tuple(range(len(entry.axes)))
    kind, attributes = ("Identity", {}) if straight else ("Transpose", {"perm": entry.axes})
    nodes.append(made_by(kind, [entry.parameter], entry.tensor, **attributes))


def _expanded(
    entry: Restored, stored: Stored, nodes: list[onnx.NodeProto], added: list[onnx.TensorProto]
) -> None:
    value = stored.value(entry.tensor)
    places = tuple(slice(0, 1) if k in entry.axes else slice(None) for k in range(value.ndim))
    core = np.ascontiguousarray(value[places])
    shape = f"{entry.tensor}/shape"
    added.append(numpy_helper.from_array(core, entry.parameter))
    added.append(numpy_helper.from_array(np.array(value.shape, np.int64), shape))
    nodes.append(made_by("Expand", [entry.parameter, shape], entry.tensor))


def _filled(
    entry: Restored, stored: Stored, nodes: list[onnx.NodeProto], added: list[onnx.TensorProto]
) -> None:
    """What is learned is split where the zeros were, and joined with them again."""
    value, (start, stop) = stored.value(entry.tensor), entry.axes
    learned = np.delete(value, np.s_[start:stop])
    added.append(numpy_helper.from_array(learned, entry.parameter))
    sizes = numpy_helper.from_array(np.array([start, learned.size - start], np.int64))
    zeros = numpy_helper.from_array(np.zeros(stop - start, value.dtype))
    before, after, count, middle = filling(entry.tensor)
    nodes.append(helper.make_node("Constant", [], [count], name=count, value=sizes))
    nodes.append(helper.make_node("Constant", [], [middle], name=middle, value=zeros))
    split = [entry.parameter, count]
    nodes.append(helper.make_node("Split", split, [before, after], name=f"{before}/Split", axis=0))
    nodes.append(made_by("Concat", [before, middle, after], entry.tensor, axis=0))


def filling(tensor: str) -> list[str]:
    """Names of what a tensor with zeros is joined from, beside the parameter."""
    return [f"{tensor}/{part}" for part in ("before", "after", "sizes", "zeros")]


def on_the_way(tensor: str) -> list[str]:
    """Names of what nodes make before they make the tensor."""
    return [*filling(tensor), f"{tensor}/{PLAIN}", *helpers_of(tensor)[0]]


def read_by_makers(tensor: str) -> list[str]:
    """Names of constants that these nodes read."""
    return [*(f"{tensor}/{end}" for end in HELPERS), *helpers_of(tensor)[1]]


MAKERS: dict[str, Maker] = {
    "tie": _tied, "expand": _expanded, "fill": _filled, "part": cut, "pick": pick, "mask": mask,
    "computed": computed,
}  # fmt: skip
MADE = {*MAKERS, "share"}  # how a tensor is made from a parameter, and no longer stored
