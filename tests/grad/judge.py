"""Gradients of a model judged by finite differences of onnxruntime.

A model becomes a loss (its outputs by random numbers, added up), which is differentiated by all of
its floating-point inputs. Where a difference from one side is another than from the other side, any
number between is right; where there is none from one side (the end of what a function is for), or
the loss jumps, any at all. The step has to compute the same loss, too, and every value in it has to
have the shape and the type that the step says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from onnxremat.errors import OnnxrematError
from onnxremat.grad import differentiate, training_of
from onnxremat.ort import blocks

STEPS = (3e-2, 1e-2, 1e-3, 1e-4)  # of finite differences in float32
CLOSE = 3e-2
DIRECTIONS = 3
ROUNDING = 3e-7  # of a loss in float32
JUMP = 50.0  # a slope that grows so much from the first step to the last, a 300th of it
HALF = 5e-2  # what float16 may be off by
HUGE = 1e20  # a loss beyond it has masked scores in it
LOSS = "judged.loss"
RIGHT = "right"
SMOOTH = (np.float32, np.float64)

Feeds = dict[str, np.ndarray]


class NotJudgedError(Exception):
    """Why a test says nothing about gradients."""


@dataclass(frozen=True)
class Judged:
    """A loss, and where its gradients are looked at."""

    loss: onnx.ModelProto
    feeds: Feeds
    by: list[str]


def judged(
    model: onnx.ModelProto, given: list, *, stored: bool, smooth: Collection[type] = SMOOTH
) -> Judged:
    """The loss of a test.

    Args:
        stored: inputs that are no floating-point numbers become initializers.
        smooth: element types of what is differentiated by.

    Raises:
        NotJudgedError: onnxruntime does not run it, or nothing of it is a floating-point number.
    """
    session = opened_session(model)
    names = [value.name for value in session.get_inputs()]
    feeds = dict(zip(names, given, strict=False))
    try:
        results = session.run(None, feeds)
    except Exception as error:
        raise NotJudgedError(f"onnxruntime does not run it ({type(error).__name__})") from error
    by = [name for name, value in feeds.items() if is_smooth(value, smooth)]
    if not by:
        raise NotJudgedError("no input of floating-point numbers")
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = max(4, made.ir_version)
    del made.graph.input[:]
    for name, value in feeds.items():
        if not isinstance(value, np.ndarray):
            raise NotJudgedError("an input that is no tensor")
        if name in by or not stored:
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            made.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        else:
            made.graph.initializer.append(numpy_helper.from_array(value, name))
    outputs = [value.name for value in session.get_outputs()]
    kind = feeds[by[0]].dtype
    kind = np.dtype(np.float32) if kind == np.float16 else kind
    _add_loss(made.graph, dict(zip(outputs, results, strict=True)), kind)
    inputs = {value.name for value in made.graph.input}
    return Judged(made, {name: value for name, value in feeds.items() if name in inputs}, by)


def _add_loss(graph: onnx.GraphProto, results: Feeds, dtype: np.dtype) -> None:
    draw, terms = np.random.default_rng(7), []
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    for name, value in results.items():
        if not (isinstance(value, np.ndarray) and (is_smooth(value) or value.dtype == np.float16)):
            continue
        if not np.isfinite(value).all():
            raise NotJudgedError("a result that is not finite")
        weight = draw.uniform(0.5, 1.5, value.shape) * draw.choice([-1.0, 1.0], value.shape)
        wide, by, product, term = (f"judged.{what}.{name}" for what in ("wide", "by", "of", "sum"))
        graph.initializer.append(numpy_helper.from_array(np.asarray(weight, dtype), by))
        graph.node.append(helper.make_node("Cast", [name], [wide], to=kind))
        graph.node.append(helper.make_node("Mul", [wide, by], [product]))
        graph.node.append(helper.make_node("ReduceSum", [product], [term], keepdims=0))
        terms.append(term)
    if not terms:
        raise NotJudgedError("no result of floating-point numbers")
    graph.node.append(helper.make_node("Sum", terms, [LOSS]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(LOSS, kind, []))


def verdict(case: Judged, **options: Any) -> str:
    """``right``, or a kind and what is to be said of it.

    Args:
        options: settings of :func:`~onnxremat.grad.differentiate`.

    Raises:
        NotJudgedError: its loss is not finite.
    """
    forward = opened_session(case.loss)
    here = float(forward.run(None, case.feeds)[0])
    if not abs(here) < HUGE:
        raise NotJudgedError("a loss that is not finite")
    try:
        step = _step(case, options)
    except OnnxrematError as error:
        return f"refused: {error.what}; {error.why}".splitlines()[0]
    except Exception as error:
        return f"wrong: a traceback, {_line(error)}"
    try:
        found = all_values(step, case.feeds)
    except Exception as error:
        return f"wrong: the step does not run, {_line(error)}"
    if wrong := _other_loss(here, found[training_of(step).loss]) or _other_shape(step, found):
        return f"wrong: {wrong}"
    for name in case.by:
        gradient = found.get(f"{name}.grad", np.zeros_like(case.feeds[name]))
        if gradient.shape != case.feeds[name].shape:
            return f"wrong: of {name}, its shape is {gradient.shape}"
        fault = _fault(forward, case.feeds, name, np.asarray(gradient, np.float64))
        if fault:
            return f"wrong: of {name}, {fault}"
    return RIGHT


def _step(case: Judged, options: dict[str, Any]) -> onnx.ModelProto:
    training = any(
        attribute.name == "training_mode" and attribute.i
        for node in case.loss.graph.node
        for attribute in node.attribute
    )
    settings = {"dropout": False, "batch_norm": "train" if training else "frozen", **options}
    return differentiate(case.loss, loss_output=LOSS, optimizer=None, trainable=case.by, **settings)


def in_half(half: Judged, single: Judged, **options: Any) -> str:
    """As :func:`verdict`, of a model in float16: by the gradients of the same in float32, which are
    judged by themselves."""
    found = []
    for case in (single, half):
        try:
            found.append(all_values(_step(case, options), case.feeds))
        except OnnxrematError as error:
            return f"refused: {error.what}; {error.why}".splitlines()[0]
        except Exception as error:
            return f"wrong: the step does not run, {_line(error)}"
    for name in half.by:
        right, made = (np.asarray(each.get(f"{name}.grad", 0.0), np.float64) for each in found)
        least = HALF * max(1.0, float(np.abs(right).max(initial=0.0)))
        if not np.allclose(made, right, rtol=HALF, atol=least):
            return f"wrong: of {name} in half precision, {made.ravel()} not {right.ravel()}"
    return RIGHT


def _other_loss(here: float, found: np.ndarray) -> str:
    made = float(np.ravel(found)[0])
    if abs(made - here) <= 1e-3 * max(1.0, abs(here)):
        return ""
    return f"the loss is {made:.6g}, not {here:.6g}"


def _other_shape(step: onnx.ModelProto, found: Feeds) -> str:
    """Where a value is other than the step says."""
    for value in (*step.graph.value_info, *step.graph.output):
        kind = value.type.tensor_type
        known = [dim.dim_value for dim in kind.shape.dim if dim.HasField("dim_value")]
        made = found.get(value.name)
        if made is None or len(known) < len(kind.shape.dim):
            continue
        if made.shape != tuple(known):
            return f"the shape of {value.name} is {made.shape}, not {tuple(known)}"
    return ""


def all_values(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Every value that a run of a model makes; sequences and values in blocks of channels left
    out."""
    more = onnx.ModelProto()
    more.CopyFrom(model)
    known = {value.name for value in more.graph.output}
    del more.graph.value_info[:]
    for node in more.graph.node:
        for name in node.output:
            if name and name not in known and node.domain != blocks.DOMAIN:
                known.add(name)
                more.graph.output.append(onnx.ValueInfoProto(name=name))
    session = ort.InferenceSession(more.SerializeToString(), _options())
    read = {value.name for value in session.get_inputs()}
    made = session.run(None, {name: feeds[name] for name in read})
    names = [value.name for value in session.get_outputs()]
    pairs = zip(names, made, strict=True)
    return {name: value for name, value in pairs if isinstance(value, np.ndarray)}


def _fault(forward: ort.InferenceSession, feeds: Feeds, name: str, gradient: np.ndarray) -> str:
    """What is wrong with a gradient: first along random directions, and where one differs, number
    by number."""
    draw = np.random.default_rng(1)
    tried = [draw.standard_normal(gradient.shape) for _ in range(DIRECTIONS)]
    if all(_agrees(forward, feeds, name, gradient, np.asarray(way)) for way in tried):
        return ""
    for at in np.ndindex(gradient.shape):
        way = np.zeros_like(gradient)
        way[at] = 1.0
        if not _agrees(forward, feeds, name, gradient, way):
            _, slopes = _slopes(forward, feeds, name, way)
            return f"{gradient[at]:.6g} at {list(at)} where {slopes}"
    return ""


def _agrees(
    forward: ort.InferenceSession, feeds: Feeds, name: str, gradient: np.ndarray, way: np.ndarray
) -> bool:
    parts = gradient[way != 0] * way[way != 0]
    slope, near = float(parts.sum()), CLOSE * (1e-3 + float(np.abs(parts).sum()))
    here, slopes = _slopes(forward, feeds, name, way)
    alone, rounding = np.count_nonzero(way) == 1, ROUNDING * abs(here)
    first, last = (abs(sum(slopes[k])) / 2 for k in (0, -1))
    if alone and last > JUMP * max(first, 1.0):
        return True
    for step, (down, up) in zip(STEPS, slopes, strict=True):
        low, high = min(down, up), max(down, up)
        middle = (low + high) / 2
        if alone and not np.isfinite(middle):
            return True
        margin = near + CLOSE * max(abs(low), abs(high)) + rounding / step
        # Number by number anything between the sides is right; along many, their middle.
        between = alone and low - margin <= slope <= high + margin
        if between or abs(slope - middle) <= margin:
            return True
    return False


def _slopes(
    forward: ort.InferenceSession, feeds: Feeds, name: str, way: np.ndarray
) -> tuple[float, list[tuple[float, float]]]:
    """The loss, and its differences over each step, from below and from above."""
    value = feeds[name]

    def at(step: float) -> float:
        moved = np.asarray(value + step * way, value.dtype)
        return float(forward.run(None, {**feeds, name: moved})[0])

    here = at(0.0)
    return here, [((here - at(-step)) / step, (at(step) - here) / step) for step in STEPS]


def is_smooth(value: object, kinds: Collection[type] = SMOOTH) -> bool:
    """Floating-point numbers that finite differences are taken of."""
    return isinstance(value, np.ndarray) and value.dtype in kinds


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return options


def opened_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session of one thread.

    Raises:
        NotJudgedError: onnxruntime does not open it.
    """
    try:
        return ort.InferenceSession(model.SerializeToString(), _options())
    except Exception as error:
        raise NotJudgedError(f"onnxruntime does not open it ({type(error).__name__})") from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
