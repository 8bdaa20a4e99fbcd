"""What is right: all that onnxremat makes of a model against plain onnxruntime on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import numpy_helper

from onnxremat.errors import ModelError, OnnxrematError
from onnxremat.fission.opened import norms_of, opened
from onnxremat.fission.region import Region
from onnxremat.fission.rows import rows_of
from onnxremat.fission.split import split
from onnxremat.graph.axis_sums import TOTALS
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.spans import CannotSplitError, Facts
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import optimised_for
from tests.fuzz_nodes.case import Case
from tests.grad.judge import (
    RIGHT,
    SMOOTH,
    NotJudgedError,
    all_values,
    in_half,
    judged,
    opened_session,
    verdict,
)

Results: TypeAlias = dict[str, np.ndarray]
GRAINS = (1, 2, 3, 4)
CLOSE = {np.float16: 2e-2, np.float32: 1e-4, np.float64: 1e-4}
TARGETS = ("host", "portable")


@dataclass(frozen=True)
class Found:
    """What was said of a case.

    Attributes:
        kind: ``right``; ``forward`` where that is right and there is no gradient to judge;
            ``refused`` to be differentiated; ``wrong``; ``unrun`` where onnxruntime refuses it.
    """

    kind: str
    text: str = ""


def run_plain(case: Case) -> Results:
    """Plain onnxruntime on the model.

    Raises:
        NotJudgedError: it refuses it.
    """
    session = opened_session(case.model)
    names = [value.name for value in session.get_inputs()]
    try:
        made = session.run(None, dict(zip(names, case.feeds, strict=True)))
    except Exception as error:
        raise NotJudgedError(f"onnxruntime does not run it ({type(error).__name__})") from error
    return dict(zip([value.name for value in session.get_outputs()], made, strict=True))


def forward(case: Case, wanted: Results) -> Iterator[str]:
    """What is wrong with its graph and all that computes the same."""
    try:
        graph = build_graph(case.model)
    except ModelError as error:
        yield f"cannot be read: {error.what}; {error.why}"
        return
    yield from _shapes(case, graph)
    yield _differs("written again", to_model(graph), case, wanted)
    for target in TARGETS:
        try:
            made = optimised_for(case.model, target, None)
        except OnnxrematError as error:
            yield f"not optimised for {target}: {error.what}; {error.why}"
            continue
        yield _differs(f"optimised for {target}", to_model(made.graph), case, wanted)
    for norm in norms_of(graph):
        model = to_model(opened(graph, [norm.name]))
        yield _differs("a norm written out", model, case, wanted)
    for what, region in _regions(graph):
        yield _differs(what, to_model(split(graph, [region], 1)), case, wanted)


def _shapes(case: Case, graph: Graph) -> Iterator[str]:
    """Shapes and types of all values against those of a run."""
    names = [value.name for value in case.model.graph.input]
    made = all_values(case.model, dict(zip(names, case.feeds, strict=True)))
    for name, value in made.items():
        known = graph.tensors[name].shape
        if known is not None and known != value.shape:
            yield f"the shape of {name} is {value.shape}, not {known}"


def _regions(graph: Graph) -> Iterator[tuple[str, Region]]:
    """Each op in two uneven parts, along each axis that its outputs have; and as a sum of parts."""
    facts = Facts(graph)
    for op in graph.ops:
        rank = min(len(graph.tensors[name].shape or ()) for name in op.writes)
        for axis, size in enumerate((graph.tensors[op.outputs[0]].shape or ())[:rank]):
            for grain in (grain for grain in GRAINS if 2 * grain <= size):
                outputs = dict.fromkeys(op.writes, axis)
                region = Region((op.name,), outputs, (2, 1), dict.fromkeys(op.writes, grain))
                if _goes(graph, facts, region):
                    yield f"{op.op_type} in parts along {axis}", region
                    break
        if (op.domain, op.op_type) not in TOTALS:
            continue
        for axis, size in enumerate(graph.tensors[op.inputs[0]].shape or ()):
            region = Region((op.name,), {}, (2, 1), {}, sums={op.outputs[0]: axis})
            if size > 1 and _goes(graph, facts, region):
                yield f"{op.op_type} as a sum of parts along {axis}", region


def _goes(graph: Graph, facts: Facts, region: Region) -> bool:
    try:
        rows_of(graph, facts, region)
    except CannotSplitError:
        return False
    return True


def _differs(what: str, model: onnx.ModelProto, case: Case, wanted: Results) -> str:
    """How a model differs from what is wanted, "" where it does not."""
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, case.feeds, strict=True))
    try:
        session = opened_session(model)
        read = {value.name for value in session.get_inputs()}
        made = session.run(None, {name: feeds[name] for name in read})
    except Exception as error:
        return f"{what}: {type(error).__name__}: {error}".splitlines()[0][:250]
    found = dict(zip([value.name for value in session.get_outputs()], made, strict=True))
    for name, value in wanted.items():
        got = found[name]
        if got.shape != value.shape or got.dtype != value.dtype:
            return f"{what}: {name} is {got.dtype}{got.shape}, not {value.dtype}{value.shape}"
        near = CLOSE.get(value.dtype.type)
        if near is None:
            same = bool((got == value).all())
        else:
            least = near * max(1.0, _largest(value))
            same = np.allclose(got, value, rtol=near, atol=least, equal_nan=True)
        if not same:
            apart = np.abs(np.asarray(got, np.float64) - np.asarray(value, np.float64)).max()
            return f"{what}: {name} is another, by {apart:.3g}"
    return ""


def _largest(value: np.ndarray) -> float:
    finite = value[np.isfinite(value)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def gradient(case: Case) -> Found:
    """The gradients against finite differences; in half precision against those in single."""
    try:
        if any(array.dtype == np.float16 for array in case.feeds):
            pair = [
                judged(each.model, list(each.feeds), stored=case.stored, smooth=kinds)
                for each, kinds in ((case, (np.float16,)), (in_single(case), SMOOTH))
            ]
            said = in_half(*pair, **case.options)
        else:
            said = verdict(judged(case.model, list(case.feeds), stored=case.stored), **case.options)
    except NotJudgedError as why:
        return Found("forward", str(why))
    kind, _, text = said.partition(": ")
    return Found(kind, "" if kind == RIGHT else f"gradient, {text}")


def in_single(case: Case) -> Case:
    """The same with float32 in the place of float16."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in model.graph.input:
        kind = value.type.tensor_type
        kind.elem_type = T.FLOAT if kind.elem_type == T.FLOAT16 else kind.elem_type
    for tensor in model.graph.initializer:
        if tensor.data_type == T.FLOAT16:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    feeds = [x.astype(np.float32) if x.dtype == np.float16 else x for x in case.feeds]
    return replace(case, model=model, feeds=feeds)


Stage: TypeAlias = Callable[[str], None]


def judge(case: Case, stage: Stage = lambda _: None) -> Found:
    """All of it; the first thing that is wrong.

    Args:
        stage: told before what may crash.
    """
    stage("onnxruntime alone")
    try:
        wanted = run_plain(case)
    except NotJudgedError as why:
        return Found("unrun", str(why))
    stage("forward")
    for wrong in forward(case, wanted):
        if wrong:
            return Found("wrong", wrong)
    stage("gradient")
    return gradient(case)
