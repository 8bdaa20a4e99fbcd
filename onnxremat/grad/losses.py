"""Losses: each emits its value and, in closed form, the cotangent of the prediction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from onnx import TensorProto as T

from onnxremat.errors import UsageError
from onnxremat.grad.exported.marks import first_of
from onnxremat.grad.named import by_name
from onnxremat.grad.tape import FLOATS, Shape, Tape
from onnxremat.graph.ir import Tensor
from onnxremat.limits import above, at_least, between, whole


class Loss(ABC):
    """A mean over the batch of how far a prediction is from its target.

    ``activations`` are operators a model may end with that the loss contains itself: they are
    cut off, so that the loss sees logits.
    """

    activations: tuple[str, ...] = ()

    @abstractmethod
    def target(self, shape: Shape, dtype: int) -> tuple[int, Shape]:
        """Element type and shape of the target of a prediction."""

    @abstractmethod
    def value(self, t: Tape, prediction: str, target: str) -> str:
        """Emit the loss, a scalar."""

    @abstractmethod
    def cotangent(self, t: Tape, prediction: str, target: str) -> str:
        """Emit its gradient with respect to the prediction; called after :meth:`value`."""

    def within(self, activation: str, axis: int, shape: Shape) -> Loss | None:
        """The loss of what a final activation gets, None where the loss does not contain it.

        Args:
            activation: operator type.
            axis: of a softmax, counted from 0.
            shape: of its result.
        """
        return self if activation in self.activations else None

    def classes(self, shape: Shape) -> int:
        """Labels of a prediction of this shape are below it; 0 where the target is no class."""
        return 0

    def accuracy(self, t: Tape, prediction: str, target: str) -> str | None:
        """Emit the share of right predictions, a scalar; None where none is right or wrong."""
        return None


@dataclass
class CrossEntropy(Loss):
    """-log softmax(prediction)[label], a mean over labels weighted by class.

    Attributes:
        ignore_index: label that does not count.
        label_smoothing: part of the target spread evenly over all classes.
        class_weights: one factor per class.
        axis: class axis; by default that of the Softmax that the model ends with, else the last
            one up to rank 3, and 1 beyond.

    Of labels none of which counts the mean is not a number, and the gradient 0, as in PyTorch.

    Raises:
        UsageError: smoothing that is no part, a weight that is no number, or a label or an axis
            that is no whole one.
    """

    ignore_index: int | None = None
    label_smoothing: float = 0.0
    class_weights: Sequence[float] | None = None
    axis: int | None = None
    activations = ("Softmax", "LogSoftmax")

    def __post_init__(self) -> None:
        between(self.label_smoothing, 0, 1, "label_smoothing")
        if self.ignore_index is not None:
            self.ignore_index = whole(self.ignore_index, "ignore_index")
        if self.axis is not None:
            self.axis = whole(self.axis, "axis")
        if self.class_weights is not None:
            self.class_weights = tuple(map(float, self.class_weights))
            for weight in self.class_weights:
                at_least(weight, 0, "a class weight")

    def target(self, shape: Shape, dtype: int) -> tuple[int, Shape]:
        if len(shape) < 2:
            raise UsageError(
                f"cross-entropy needs a class axis, the prediction has shape {list(shape)}",
                hint="another loss (--loss mse, bce), or another output (--prediction NAME)",
            )
        if self.axis is not None and not -len(shape) <= self.axis < len(shape):
            raise UsageError(
                f"there is no class axis {self.axis}, the prediction has shape {list(shape)}",
                hint=f"axes go from {-len(shape)} to {len(shape) - 1}",
            )
        axis = self._axis(shape)
        if self.class_weights is not None and len(self.class_weights) != shape[axis]:
            raise UsageError(
                f"{len(self.class_weights)} class weights for {shape[axis]} classes",
                why=f"the classes are axis {axis} of a prediction of shape {list(shape)}",
                hint="one weight per class, or another axis",
            )
        return T.INT64, (*shape[:axis], *shape[axis + 1 :])

    def within(self, activation: str, axis: int, shape: Shape) -> Loss | None:
        if activation not in self.activations or not shape:
            return None
        if self.axis is None:
            return self if axis == self._axis(shape) else replace(self, axis=axis)
        return self if axis == self.axis % len(shape) else None

    def classes(self, shape: Shape) -> int:
        return shape[self._axis(shape)]

    def accuracy(self, t: Tape, prediction: str, target: str) -> str:
        shape = t.shape(prediction)
        axis = self._axis(shape)
        likeliest = t.op(
            "ArgMax", prediction, axis=axis, keepdims=0, dtype=T.INT64, shape=t.shape(target)
        )
        right = t.cast(t.compare("Equal", likeliest, target), T.FLOAT)
        every = range(t.rank(target))
        if self.ignore_index is None:
            return t.mean(right, every, keep=False)
        ignored = t.compare("Equal", target, self.ignore_index)
        counts = t.cast(t.op("Not", ignored), T.FLOAT)
        most = t.op("Max", t.sum(counts, every), 1.0)  # a batch in which no label counts
        return t.div(t.sum(t.mul(right, counts), every), most)

    def _axis(self, shape: Shape) -> int:
        if self.axis is not None:
            return self.axis % len(shape)
        return len(shape) - 1 if len(shape) <= 3 else 1

    def value(self, t: Tape, prediction: str, target: str) -> str:
        shape = t.shape(prediction)
        axis, every = self._axis(shape), range(len(shape))
        self._log = t.op("LogSoftmax", prediction, axis=axis, shape=shape)
        column = (*shape[:axis], 1, *shape[axis + 1 :])
        self._labels = t.reshape(target, column)
        self._valid: str | None = None
        if self.ignore_index is not None:
            ignored = t.compare("Equal", self._labels, self.ignore_index)
            self._labels = t.where(ignored, 0, self._labels)
            self._valid = t.cast(t.op("Not", ignored), t.dtype(prediction))
        picked = t.op("GatherElements", self._log, self._labels, shape=column, axis=axis)
        self._weight = self._label_weights(t, prediction, column)
        if self._weight is None:
            self._share: str | float = 1.0 / math.prod(column)
            hard = t.mul(t.sum(picked, every), -float(self._share))
        else:
            total = t.sum(self._weight, every)
            self._share = share_of(t, 1.0, total)
            hard = t.neg(t.div(t.sum(t.mul(picked, self._weight), every), total))
        if not self.label_smoothing:
            return hard
        return t.add(t.mul(hard, 1.0 - self.label_smoothing), self._soft(t, axis))

    def _label_weights(self, t: Tape, prediction: str, column: Shape) -> str | None:
        weight = self._valid
        if self.class_weights is not None:
            table = t.constant(list(self.class_weights), t.dtype(prediction))
            picked = t.op("Gather", table, self._labels, shape=column, axis=0)
            weight = picked if weight is None else t.mul(picked, weight)
        return weight

    def _class_row(self, t: Tape, axis: int) -> str:
        """Class weights, ready to broadcast along the class axis."""
        classes = t.shape(self._log)[axis]
        weights = [1.0] * classes if self.class_weights is None else list(self.class_weights)
        shape = [classes if k == axis else 1 for k in range(t.rank(self._log))]
        return t.constant(np.array(weights).reshape(shape), t.dtype(self._log))

    def _soft(self, t: Tape, axis: int) -> str:
        """The part of the loss that wants all classes equally likely."""
        classes = t.shape(self._log)[axis]
        spread = self._log
        if self.class_weights is not None:
            spread = t.mul(spread, self._class_row(t, axis))
        rows = t.sum(spread, [axis], keep=True)
        rows = rows if self._valid is None else t.mul(rows, self._valid)
        total = t.sum(rows, range(t.rank(rows)))
        return t.mul(t.mul(total, -self.label_smoothing / classes), self._share)

    def cotangent(self, t: Tape, prediction: str, target: str) -> str:
        shape, smooth = t.shape(prediction), self.label_smoothing
        axis = self._axis(shape)
        probability = t.exp(self._log)
        minus = t.constant(-(1.0 - smooth), t.dtype(prediction))
        updates = t.expand(t.reshape(minus, [1] * len(shape)), t.shape(self._labels))
        if smooth and self.class_weights is not None:
            return self._weighted_cotangent(t, probability, updates, axis)
        error = t.op(
            "ScatterElements", probability, self._labels, updates, shape=shape, axis=axis,
            reduction="add",
        )  # fmt: skip
        if smooth:
            error = t.sub(error, smooth / shape[axis])
        if self._weight is None:
            return t.mul(error, self._share)
        return t.mul(error, t.mul(self._weight, self._share))

    def _weighted_cotangent(self, t: Tape, probability: str, updates: str, axis: int) -> str:
        smooth, classes = self.label_smoothing, t.shape(probability)[axis]
        hard = t.op(
            "ScatterElements", t.mul(probability, 1.0 - smooth), self._labels, updates,
            shape=t.shape(probability), axis=axis, reduction="add",
        )  # fmt: skip
        if self._weight is not None:
            hard = t.mul(hard, self._weight)
        row = self._class_row(t, axis)
        assert self.class_weights is not None
        total = sum(self.class_weights)
        soft = t.mul(t.sub(t.mul(probability, total), row), smooth / classes)
        soft = soft if self._valid is None else t.mul(soft, self._valid)
        return t.mul(t.add(hard, soft), self._share)


def share_of(t: Tape, whole: str | float, total: str) -> str:
    """Emit ``whole / total`` for a gradient of a mean over what has a total weight: 0 where nothing
    counts, since no parameter changes such a mean. One batch of ignored labels would else leave no
    parameter a number."""
    return t.where(t.compare("Equal", total, 0.0), 0.0, t.div(whole, total))


class _Elementwise(Loss):
    """Target of the prediction's type and shape; the mean over all elements."""

    def target(self, shape: Shape, dtype: int) -> tuple[int, Shape]:
        return dtype, shape

    @staticmethod
    def _mean(t: Tape, a: str) -> str:
        return t.mul(t.sum(a, range(t.rank(a))), 1.0 / t.size(a))

    @staticmethod
    def _per_element(t: Tape, a: str, factor: float = 1.0) -> str:
        return t.mul(a, factor / t.size(a))


@dataclass
class BinaryCrossEntropy(_Elementwise):
    """log(1 + e**x) - x z for logits x and targets z in [0, 1]."""

    activations = ("Sigmoid",)

    def accuracy(self, t: Tape, prediction: str, target: str) -> str:
        said, meant = t.compare("Greater", prediction, 0.0), t.compare("Greater", target, 0.5)
        right = t.cast(t.compare("Equal", said, meant), T.FLOAT)
        return t.mean(right, range(t.rank(right)), keep=False)

    def value(self, t: Tape, prediction: str, target: str) -> str:
        # Softplus in the form that cannot overflow, whatever the kernel does.
        tail = t.op("Log", t.add(t.exp(t.neg(t.op("Abs", prediction))), 1.0))
        bend = t.sub(t.op("Max", prediction, 0.0), t.mul(prediction, target))
        return self._mean(t, t.add(tail, bend))

    def cotangent(self, t: Tape, prediction: str, target: str) -> str:
        return self._per_element(t, t.sub(t.op("Sigmoid", prediction), target))


@dataclass
class MeanSquaredError(_Elementwise):
    """(x - z)**2."""

    def value(self, t: Tape, prediction: str, target: str) -> str:
        self._error = t.sub(prediction, target)
        return self._mean(t, t.mul(self._error, self._error))

    def cotangent(self, t: Tape, prediction: str, target: str) -> str:
        return self._per_element(t, self._error, 2.0)


@dataclass
class AbsoluteError(_Elementwise):
    """|x - z|."""

    def value(self, t: Tape, prediction: str, target: str) -> str:
        self._error = t.sub(prediction, target)
        return self._mean(t, t.op("Abs", self._error))

    def cotangent(self, t: Tape, prediction: str, target: str) -> str:
        return self._per_element(t, t.op("Sign", self._error))


@dataclass
class Huber(_Elementwise):
    """(x - z)**2 / 2 up to an error of ``delta``, linear beyond.

    Raises:
        UsageError: a ``delta`` that is not above 0.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        above(self.delta, 0, "delta")

    def value(self, t: Tape, prediction: str, target: str) -> str:
        self._error = t.sub(prediction, target)
        size = t.op("Abs", self._error)
        inner = t.op("Min", size, self.delta)
        return self._mean(t, t.mul(inner, t.sub(size, t.mul(inner, 0.5))))

    def cotangent(self, t: Tape, prediction: str, target: str) -> str:
        error = self._error
        bounds = [t.like(-self.delta, error), t.like(self.delta, error)]
        return self._per_element(t, t.op("Clip", error, *bounds, shape=t.shape(error)))


@dataclass
class Dice(_Elementwise):
    """1 - (2 sum(p z) + s) / (sum p + sum z + s) per image and channel, p = sigmoid(x).

    Raises:
        UsageError: ``smooth`` is negative.
    """

    smooth: float = 1.0
    activations = ("Sigmoid",)

    def __post_init__(self) -> None:
        at_least(self.smooth, 0, "smooth")

    def value(self, t: Tape, prediction: str, target: str) -> str:
        axes = range(min(2, t.rank(prediction)), t.rank(prediction))
        self._probability = t.op("Sigmoid", prediction)
        overlap = t.sum(t.mul(self._probability, target), axes, keep=True)
        self._overlap = t.add(t.mul(overlap, 2.0), self.smooth)
        total = t.sum(t.add(self._probability, target), axes, keep=True)
        self._total = t.add(total, self.smooth)
        return t.sub(1.0, self._mean(t, t.div(self._overlap, self._total)))

    def cotangent(self, t: Tape, prediction: str, target: str) -> str:
        p = self._probability
        square = t.mul(self._total, self._total)
        rise = t.div(t.sub(self._overlap, t.mul(t.mul(target, 2.0), self._total)), square)
        slope = t.mul(rise, t.mul(p, t.sub(1.0, p)))
        return t.mul(slope, 1.0 / t.size(self._total))


LOSSES: dict[str, type[Loss]] = {
    "cross-entropy": CrossEntropy,
    "bce": BinaryCrossEntropy,
    "mse": MeanSquaredError,
    "l1": AbsoluteError,
    "huber": Huber,
    "dice": Dice,
}


def find_loss(loss: str | Loss) -> Loss:
    """A loss by name, with its default settings or those behind the name
    (``cross-entropy:ignore_index=-100,axis=1``).

    Raises:
        UsageError: unknown name or setting, or a value that is none.
    """
    if isinstance(loss, Loss):
        return loss
    return by_name(loss, {name: kind() for name, kind in LOSSES.items()}, "loss")


def settings_of(loss: Loss) -> dict[str, Any]:
    """The fields of a loss of this package as plain data; none for any other class."""
    if type(loss) not in LOSSES.values():
        return {}
    return {
        f.name: value if value is None else np.asarray(value).tolist()
        for f in fields(loss)  # type: ignore[arg-type]
        for value in [getattr(loss, f.name)]
    }


def loss_of(kind: str, settings: Mapping[str, Any]) -> Loss | None:
    """The reverse: a loss of this package from its class name and fields, None for any other."""
    for known in LOSSES.values():
        if known.__name__ == kind:
            return known(**settings)
    return None


def check_prediction(tensors: Mapping[str, Tensor], name: str, outputs: Sequence[str]) -> None:
    """Raises:
    UsageError: there is no such output, or it holds no floating-point numbers, or nothing.
    """
    if name not in outputs:
        hint = "outputs are " + ", ".join(outputs)
        raise UsageError(f"the model has no output '{name}'", hint=hint)
    kind = tensors[name].dtype
    if kind in FLOATS and 0 not in (tensors[name].shape or ()):
        return
    others = [other for other in outputs if other != name and tensors[other].dtype in FLOATS]
    raise UsageError(
        f"no loss can be made of output '{name}'",
        why="it has no elements" if kind in FLOATS else f"it holds {T.DataType.Name(kind)}",
        hint=f"name another output with --prediction: {first_of(others, 4)}"
        if others
        else "give a model whose output is what a loss compares with the target",
    )
