"""Tensors that an exporter computed of a parameter and a number, where the file has the parameter
too: ``1 - mix`` beside ``mix``. Both have a part in the gradient, so the one is made of the other.

The numbers tell: every element has to come to the very bits that the operation gives in the type of
the tensor, so that irregular numbers are no chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.grad.exported.marks import Marks, is_nameless, module_of, parameters_among
from onnxremat.grad.exported.parts import SMALLEST
from onnxremat.grad.exported.patterns import LIMIT, made_by_code
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.stored import Stored, made_by

# What the nodes read, and make on the way, after the name of the tensor.
NUMBER, SIZES, PLAIN = "number", "sizes", "plain"
_DISTINCT = 3  # different values that tell one form from another, where the source is known
_HEAD, _CLOSE, _ULPS = 8, 1e-5, 4
# Whose weights exporters store transposed, or joined with a normalization.
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})

# By name: the operator, whether the number is its first input, and what n gives c of p.
_FORMS: dict[str, tuple[str, bool, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "less": ("Sub", True, lambda c, p: c + p),
    "plus": ("Add", False, lambda c, p: c - p),
    "times": ("Mul", False, lambda c, p: c / p),
    "over": ("Div", False, lambda c, p: p / c),
    "under": ("Div", True, lambda c, p: c * p),
}
_NOTHING = {("plus", 0.0), ("times", 1.0), ("over", 1.0)}  # equal tensors may be two parameters
_NUMPY = {"Sub": np.subtract, "Add": np.add, "Mul": np.multiply, "Div": np.divide}


def computed_among(
    model: onnx.ModelProto, names: Sequence[str], stored: Stored, marks: Marks
) -> list[Restored]:
    """Which tensors whose names the exporter made up were computed of one that has its own.

    Args:
        names: initializers of floating-point numbers to look at.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    fits = [n for n in names if 1 < stored.size(n) <= LIMIT and stored.readable(n)]
    sources: dict[tuple[int, int], list[str]] = {}
    for name in fits:
        if not (is_nameless(name) or name in marks.folded or marks.nameless(name)):
            kind = stored.tensors[name].data_type
            sources.setdefault((kind, stored.size(name)), []).append(name)
    found = []
    for name in fits:
        known = sources.get((stored.tensors[name].data_type, stored.size(name)), [])
        if not known or name in known or name not in readers:
            continue
        told = parameters_among(marks.folded.get(name, ()), marks.kinds)
        if name in marks.folded:
            known = [each for each in known if (each,) == told]
        if told or not all(node.op_type in _PRODUCTS for node in readers[name]):
            found += _computed_of(name, known, readers[name], stored, bool(told))
    return found


def _computed_of(
    name: str,
    known: Sequence[str],
    readers: Sequence[onnx.NodeProto],
    stored: Stored,
    told: bool,
) -> list[Restored]:
    value = stored.value(name)
    if value.dtype.kind != "f":  # of eight bits or of two bytes that numpy does not know
        return []
    few = np.unique(value).size < _DISTINCT if told else made_by_code(value)
    if few or (not told and value.size < SMALLEST):
        return []
    matches = []
    for source in known:
        form = _form(value.reshape(-1), stored.value(source).reshape(-1))
        if form is not None and (told or form not in _NOTHING):
            matches.append(Restored("computed", source, name, form=form[0], number=form[1]))
    homes = {module_of(node) for node in readers}
    near = [m for m in matches if homes == {m.parameter.rpartition(".")[0]}]
    return next((each for each in (near, matches) if len(each) == 1), [])


def _form(value: np.ndarray, source: np.ndarray) -> tuple[str, float] | None:
    """The form and the number by which one tensor is computed of another."""
    head, start = value[:_HEAD].astype(np.float64), source[:_HEAD].astype(np.float64)
    scale = float(np.abs(np.concatenate([head, start])).max())
    with np.errstate(all="ignore"):
        for form, (_, _, solve) in _FORMS.items():
            numbers = solve(head, start)
            size = scale if form in ("less", "plus") else np.abs(numbers).max()
            if not np.ptp(numbers) <= _CLOSE * size:  # also where it is no number
                continue
            for number in _near(float(np.median(numbers)), value.dtype):
                if np.array_equal(_made(form, number, source), value):
                    return form, float(number)
    return None


def _near(number: float, kind: np.dtype) -> Iterator[np.floating]:
    """Numbers that code may hold: round ones first."""
    for digits in range(1, 7):
        yield kind.type(float(f"{number:.{digits}g}"))
    middle = kind.type(number)
    up = down = middle
    yield middle
    for _ in range(_ULPS):
        up, down = np.nextafter(up, kind.type(np.inf)), np.nextafter(down, kind.type(-np.inf))
        yield up
        yield down


def _made(form: str, number: np.floating, source: np.ndarray) -> np.ndarray:
    kind, first, _ = _FORMS[form]
    made: np.ndarray = _NUMPY[kind](*((number, source) if first else (source, number)))
    return made


def computed(
    entry: Restored, stored: Stored, nodes: list[onnx.NodeProto], added: list[onnx.TensorProto]
) -> None:
    """The tensor, made from the parameter."""
    value, (kind, first, _) = stored.value(entry.tensor), _FORMS[entry.form]
    number = f"{entry.tensor}/{NUMBER}"
    added.append(numpy_helper.from_array(np.array(entry.number, value.dtype), number))
    inputs = [number, entry.parameter] if first else [entry.parameter, number]
    known = entry.parameter in stored.tensors
    if known and stored.shape(entry.parameter) == value.shape:
        nodes.append(made_by(kind, inputs, entry.tensor))
        return
    sizes, plain = f"{entry.tensor}/{SIZES}", f"{entry.tensor}/{PLAIN}"
    added.append(numpy_helper.from_array(np.array(value.shape, np.int64), sizes))
    nodes.append(made_by(kind, inputs, plain))
    nodes.append(made_by("Reshape", [plain, sizes], entry.tensor))


def computed_again(entry: Restored, value: np.ndarray) -> np.ndarray:
    """What the operation gives of a value that the parameter has now, in the parameter's shape."""
    return _made(entry.form, value.dtype.type(entry.number), value)
