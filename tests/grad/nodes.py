"""ONNX's own tests of operators as a judge of gradients:

    python -m tests.grad.nodes [--only NAME] [--each]

Every test of one node that the onnx package brings becomes a loss (its outputs by random numbers,
added up), which is differentiated by all of its floating-point inputs and compared with finite
differences by onnxruntime. Other inputs are stored in the model, and once more fed. Where a
difference from one side is another than from the other side, any number between is right; where
there is none from one side (the end of what a function is for), or the loss jumps, any at all.

Prints what is wrong, and how many tests are right, refused or not judged, with the reasons; exits 1
where a gradient is wrong.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from onnxremat.errors import OnnxrematError
from onnxremat.grad import differentiate

STEPS = (3e-2, 1e-2, 1e-3, 1e-4)  # of finite differences in float32
CLOSE = 3e-2
DIRECTIONS = 3
ROUNDING = 3e-7  # of a loss in float32
JUMP = 50.0  # a slope that grows so much from the first step to the last, a 300th of it
HUGE = 1e20  # a loss beyond it has masked scores in it
LOSS = "judged.loss"
RIGHT = "right"

Feeds = dict[str, np.ndarray]


class NotJudgedError(Exception):
    """Why a test says nothing about gradients."""


@dataclass(frozen=True)
class Judged:
    """A loss, and where its gradients are looked at."""

    loss: onnx.ModelProto
    feeds: Feeds
    by: list[str]


def main(arguments: list[str] | None = None) -> int:
    """Print what is not judged, what is wrong, and how many there are of each kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.grad.nodes", description=__doc__)
    parser.add_argument("--only", default="", help="tests whose name has this in it")
    parser.add_argument("--each", action="store_true", help="print every test that is not right")
    asked = parser.parse_args(arguments)
    kinds, reasons = Counter[str](), Counter[str]()
    for name, verdict in verdicts(asked.only):
        kind = verdict.split(":")[0]
        kinds[kind] += 1
        if kind == "wrong" or (kind != RIGHT and asked.each):
            print(f"{name}  {verdict}", flush=True)
        if kind not in (RIGHT, "wrong"):
            reasons[verdict] += 1
    for verdict, many in reasons.most_common():
        print(f"{many:5}  {verdict}")
    print("\n" + ", ".join(f"{many} {kind}" for kind, many in kinds.most_common()))
    return int(kinds["wrong"] > 0)


def verdicts(only: str = "") -> Iterator[tuple[str, str]]:
    """(test, verdict): ``right``, or a kind and what is to be said of it."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # some results are not finite
        warnings.simplefilter("ignore", RuntimeWarning)
        tests = load_model_tests(kind="node")
    for test in tests:
        if only not in test.name:
            continue
        given = [value if isinstance(value, list | tuple) or value is None else np.asarray(value)
                 for value in test.data_sets[0][0]]  # fmt: skip
        plain = all(isinstance(value, np.ndarray) and _smooth(value) for value in given)
        for stored in (True,) if plain else (True, False):
            try:
                verdict = _verdict(judged(test.model, given, stored=stored))
            except NotJudgedError as why:
                verdict = f"not judged: {why}"
            yield f"{test.name}{'' if stored else ', all inputs fed'}", verdict


def judged(model: onnx.ModelProto, given: list, *, stored: bool) -> Judged:
    """The loss of a test.

    Args:
        stored: inputs that are no floating-point numbers become initializers.

    Raises:
        NotJudgedError: onnxruntime does not run it, or nothing of it is a floating-point number.
    """
    session = _session(model)
    names = [value.name for value in session.get_inputs()]
    feeds = dict(zip(names, given, strict=False))
    try:
        results = session.run(None, feeds)
    except Exception as error:
        raise NotJudgedError(f"onnxruntime does not run it ({type(error).__name__})") from error
    by = [name for name, value in feeds.items() if _smooth(value)]
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
    _add_loss(made.graph, dict(zip(outputs, results, strict=True)), feeds[by[0]].dtype)
    inputs = {value.name for value in made.graph.input}
    return Judged(made, {name: value for name, value in feeds.items() if name in inputs}, by)


def _add_loss(graph: onnx.GraphProto, results: Feeds, dtype: np.dtype) -> None:
    draw, terms = np.random.default_rng(7), []
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    for name, value in results.items():
        if not (isinstance(value, np.ndarray) and (_smooth(value) or value.dtype == np.float16)):
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


def _verdict(case: Judged) -> str:
    training = any(
        attribute.name == "training_mode" and attribute.i
        for node in case.loss.graph.node
        for attribute in node.attribute
    )
    forward = _session(case.loss)
    if not abs(float(forward.run(None, case.feeds)[0])) < HUGE:
        raise NotJudgedError("a loss that is not finite")
    try:
        step = differentiate(
            case.loss, loss_output=LOSS, optimizer=None, trainable=case.by, dropout=False,
            batch_norm="train" if training else "frozen",
        )  # fmt: skip
    except OnnxrematError as error:
        return f"refused: {error.what}; {error.why}".splitlines()[0]
    except Exception as error:
        return f"wrong: a traceback, {_line(error)}"
    try:
        session = ort.InferenceSession(step.SerializeToString(), _options())
        read = {value.name for value in session.get_inputs()}
        found = session.run(None, {k: v for k, v in case.feeds.items() if k in read})
    except Exception as error:
        return f"wrong: the step does not run, {_line(error)}"
    names = [value.name for value in session.get_outputs()]
    gradients = dict(zip(names, found, strict=True))
    for name in case.by:
        gradient = gradients.get(f"{name}.grad", np.zeros_like(case.feeds[name]))
        if gradient.shape != case.feeds[name].shape:
            return f"wrong: of {name}, its shape is {gradient.shape}"
        fault = _fault(forward, case.feeds, name, np.asarray(gradient, np.float64))
        if fault:
            return f"wrong: of {name}, {fault}"
    return RIGHT


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


def _smooth(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64)


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return options


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(model.SerializeToString(), _options())
    except Exception as error:
        raise NotJudgedError(f"onnxruntime does not open it ({type(error).__name__})") from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


if __name__ == "__main__":
    sys.exit(main())
