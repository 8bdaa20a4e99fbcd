"""Whether an exported file trains what its module trains: parameters and gradients compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import OnnxrematError, UsageError, VerificationError
from onnxremat.exporting.held import Gathered, Numbers
from onnxremat.exporting.pytorch import (
    Arguments,
    Inputs,
    arguments,
    at_rest,
    backward,
    facts_of,
    need_module,
    need_torch,
    outputs_of,
    set_modes,
    untouched,
    values_of,
)
from onnxremat.exporting.run import run_file
from onnxremat.grad import differentiate, training_of
from onnxremat.grad.description import Variable
from onnxremat.grad.exported.given import Given, matched
from onnxremat.grad.exported.listed import Parameters
from onnxremat.graph.onnx_io import read_model
from onnxremat.ort.infer import bind
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.state import FirstValues, input_types

EXACT = 1e-4  # of a gradient's norm
TOLD = 0.9  # of a parameter's elements with a gradient: trained as a whole
VANISHING = 1e-6  # of the largest gradient's norm: smaller ones are 0 in exact arithmetic
HALF = 2e-2, 2e-3  # both in half precision, whose numbers are 1e-3 apart
DRAWS = 3  # inputs: a rectifier within rounding of 0 is so for one, a wrong gradient for all
ROWS, WORDS = 2, 2  # made-up inputs: of an open dimension, and below which integers are
TOTAL, SEED_PREFIX = "onnxremat_total", "/onnxremat_cotangent_"


@dataclass(frozen=True)
class Checked:
    """One parameter of the module.

    Attributes:
        name: in ``named_parameters()``.
        stored: whether the file has an initializer of this name, shape and value, or one that was
            merged with it and ``differentiate`` tells apart again.
        trained: whether ``differentiate`` trains it by default, all of it.
        wanted: whether PyTorch does.
        error: of its gradient, relative to the gradient's norm; None where there is none to
            compare.
        under: tensors of the file that hold it under other names: transposed, say.
        copied: whether the step trains an element of it twice, so that the copies drift apart.
        allowed: error that rounding may make.
    """

    name: str
    stored: bool
    trained: bool
    wanted: bool
    error: float | None
    under: tuple[str, ...] = ()
    copied: bool = False
    allowed: float = EXACT

    @property
    def problem(self) -> str:
        """What is wrong, "" where nothing is."""
        if self.wanted and not self.stored and not self.under:
            return "not in the file, by name or by value"
        if self.wanted and not self.trained:
            return "not trained, or not all of it" + " unless it is listed (--parameters)" * bool(
                self.under
            )
        if self.copied:
            return "trained as several copies, which drift apart"
        if self.trained and not self.wanted:
            return "trained, though the module does not train it"
        if self.error is not None and not self.error <= self.allowed:
            return f"its gradient is off by {self.error:.1e}"
        return ""


@dataclass(frozen=True)
class ExportCheck:
    """What :func:`check_export` found. ``str()`` of it is a table.

    Attributes:
        parameters: every parameter of the module.
        others: what the file trains by default that is no parameter.
        failed: why no gradients could be compared, "" where they were.
    """

    parameters: tuple[Checked, ...]
    others: tuple[str, ...] = ()
    failed: str = ""

    @property
    def problems(self) -> list[str]:
        """One line each."""
        found = [f"{p.name}: {p.problem}" for p in self.parameters if p.problem]
        found += [f"{name}: trained, but no parameter of the module" for name in self.others]
        return [*([self.failed] if self.failed else []), *found]

    @property
    def ok(self) -> bool:
        """Whether the file trains what the module trains, with the same gradients."""
        return not self.problems

    def require(self) -> ExportCheck:
        """Itself.

        Raises:
            VerificationError: something is wrong.
        """
        if self.ok:
            return self
        raise VerificationError(
            "the file does not train as the module does",
            why="; ".join(self.problems[:5]) + ("; ..." if len(self.problems) > 5 else ""),
            hint="export it with onnxremat.export",
        )

    def __str__(self) -> str:
        width = max((len(p.name) for p in self.parameters), default=9)
        width = max(width, len("parameter"))
        rows = [f"{'parameter':{width}}  in file  trained  gradient error"]
        for p in self.parameters:
            error = "" if p.error is None else f"{p.error:.1e}"
            told = f"  {p.problem}" if p.problem else ""
            stored = "yes" if p.stored else "renamed" if p.under else "no"
            trained = "yes" if p.trained else "no"
            told += f"  as {', '.join(p.under)}" * bool(p.under and not p.stored)
            rows.append(f"{p.name:{width}}  {stored:7}  {trained:7}  {error:14}{told}".rstrip())
        rows += [f"{name}  trained, but no parameter of the module" for name in self.others]
        return "\n".join([*rows, *([self.failed] if self.failed else [])])


def check_export(
    module: Any, path: str | os.PathLike[str], example_inputs: Inputs = None
) -> ExportCheck:
    """Compare an exported file with its module: parameters, and their gradients by autograd.

    The loss is the sum of all outputs, each element times a random number. Dropout is off on both
    sides, batch normalization normalises by the batch, where it is not frozen, nor in eval mode
    inside a module in training mode. The module is left as it was.

    Args:
        module: the ``torch.nn.Module`` that was exported.
        path: the file, by whatever exporter.
        example_inputs: as for :func:`export`; made up where left out (integers are 0 and 1).

    Raises:
        MissingComponentError: PyTorch is not installed.
        UsageError: no module, or the example inputs are not the file's.
        ModelError: the file cannot be read.
    """
    need_module(module)
    model = read_model(path)
    onnx.load_external_data_for_model(model, str(Path(path).parent))
    given = _inputs(module, model, example_inputs)
    facts = facts_of(module)
    with untouched(module):
        values, resting = values_of(module), at_rest(module)
        own = {name: values[name] for name in (*facts.trained, *facts.frozen)}
        stored = {t.name: t for t in model.graph.initializer}
        whole = {name for name, v in values.items() if _same(stored.get(name), v)}
        try:
            found = _best_errors(module, model, given, Numbers(own), resting)
        except OnnxrematError as error:
            found = _Found(failed=f"no gradients: {error.what} ({error.why})")
    return _told(facts, found, whole, own, _renamed(model, own))


@dataclass
class _Found:
    """Error per parameter with a part in the outputs, what is trained whole and how, and why
    nothing was compared."""

    errors: dict[str, float | None] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    gathered: Gathered = field(default_factory=Gathered)
    failed: str = ""


def _renamed(
    model: onnx.ModelProto, values: Mapping[str, np.ndarray]
) -> dict[str, tuple[str, ...]]:
    """Initializers with other names that hold a parameter, or a part of it."""
    found: dict[str, tuple[str, ...]] = {}
    for tensor, sources in matched(model, None, Given(dict.fromkeys(values, True), values)).items():
        for name in sources:
            if name != tensor:
                found[name] = (*found.get(name, ()), tensor)
    return found


def _told(
    facts: Parameters, found: _Found, whole: set[str], own: Mapping[str, np.ndarray],
    renamed: Mapping[str, tuple[str, ...]],
) -> ExportCheck:  # fmt: skip
    """Parameters without a part in the outputs are not listed: neither side trains them."""
    failed, under = bool(found.failed), found.gathered.under
    rows = [
        Checked(
            name,
            name in whole or name in under.get(name, ()),
            name in found.trained or (failed and name in whole),
            name in facts.trained,
            found.errors.get(name),
            tuple(n for n in under.get(name, renamed.get(name, ())) if n != name),
            name in found.gathered.copied,
            _rounding(own[name])[0],
        )
        for name in (*facts.trained, *facts.frozen)
        if failed or name in found.errors or name in under or name in facts.frozen
    ]
    return ExportCheck(tuple(rows), tuple(sorted(found.gathered.others)), found.failed)


def _same(tensor: onnx.TensorProto | None, value: np.ndarray) -> bool:
    return tensor is not None and np.array_equal(
        numpy_helper.to_array(tensor), value, equal_nan=value.dtype.kind == "f"
    )


def _inputs(module: Any, model: onnx.ModelProto, given: Inputs) -> Arguments:
    stored = {t.name for t in model.graph.initializer}
    asked = [value for value in model.graph.input if value.name not in stored]
    names = [value.name for value in asked]
    if given is not None:
        made = arguments(module, given)
        if len(made.names) != len(names):
            raise UsageError(
                f"{len(made.names)} example inputs, the file has {len(names)}",
                why=f"its inputs are {', '.join(names)}",
            )
        by_name = set(made.named) <= set(names)
        return (
            made if made.named and by_name else Arguments(made.positional, made.named, tuple(names))
        )
    torch, random = need_torch(), np.random.default_rng(0)
    tensors = []
    for value in asked:
        kind = value.type.tensor_type
        shape = [d.dim_value or ROWS for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        drawn = (
            random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, WORDS, shape)
        )
        tensors.append(torch.from_numpy(np.asarray(drawn).astype(dtype)))
    return Arguments(tuple(tensors), {}, tuple(names))


def _best_errors(
    module: Any, model: onnx.ModelProto, given: Arguments, numbers: Numbers,
    resting: Mapping[str, Any],
) -> _Found:  # fmt: skip
    """The errors are the least over draws of the inputs that were needed."""
    found = _Found()
    for draw in range(DRAWS):
        call = _drawn(given, draw)
        found.gathered = numbers.gather(*_by_onnxruntime(model, module, call))
        ours, want = found.gathered.gradients, _by_autograd(module, call, resting)
        found.trained = {n for n in ours if n not in want or _whole(ours[n], want[n])}
        largest = max((float(np.linalg.norm(g)) for g in want.values()), default=1.0)
        for name, gradient in want.items():
            error = _error(ours.get(name), gradient, largest, _rounding(numbers.values[name]))
            known = found.errors.get(name)
            found.errors[name] = error if known is None or error is None else min(known, error)
        allowed = {name: _rounding(numbers.values[name])[0] for name in found.errors}
        if all(error is None or error <= allowed[n] for n, error in found.errors.items()):
            break
    return found


def _whole(ours: np.ndarray, want: np.ndarray) -> bool:
    """Most elements with a gradient are trained; equal numbers cannot be told apart."""
    needed = want != 0
    return not needed.any() or bool((~np.isnan(ours[needed])).mean() > TOLD)


def _rounding(value: np.ndarray) -> tuple[float, float]:
    """What rounding may make of a gradient's norm, and of one that is 0, of the largest one's."""
    return HALF if value.dtype == np.float16 else (EXACT, VANISHING)


def _error(
    ours: np.ndarray | None, want: np.ndarray, largest: float, rounding: tuple[float, float]
) -> float | None:
    if ours is None:
        return None
    exact, vanishing = rounding
    size = max(float(np.linalg.norm(want)), vanishing * largest / exact, 1e-30)
    return float(np.linalg.norm(np.where(np.isnan(ours), 0.0, ours - want)) / size)


def _drawn(given: Arguments, draw: int) -> Arguments:
    """The inputs, or floating-point ones near them."""
    if draw == 0:
        return given
    torch, random = need_torch(), np.random.default_rng(draw)

    def near(t: Any) -> Any:
        if not t.is_floating_point():
            return t
        noise = torch.from_numpy(random.standard_normal(tuple(t.shape))).to(t)
        return t + 0.1 * t.std(unbiased=False) * noise

    return given.with_tensors([near(t) for t in given.tensors])


def _by_autograd(
    module: Any, given: Arguments, resting: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """In float64 arrays; parameters without a part in the outputs are left out."""
    torch = need_torch()
    set_modes(module, batch_norm=True, resting=resting)
    with torch.enable_grad():
        total: Any = 0.0
        outputs = [y for y in outputs_of(module, given) if torch.is_tensor(y)]
        for k, y in enumerate(outputs):
            if y.is_floating_point():
                seed = torch.from_numpy(_cotangent(k, tuple(y.shape))).to(y.device)
                total = total + (y * seed).sum()  # of the wider type, as in ``_with_total``
    named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    if not named or not torch.is_tensor(total) or not total.requires_grad:
        return {}
    found = backward(module, total, [p for _, p in named])
    set_modes(module)
    return {
        name: g.detach().to_dense().cpu().double().numpy()
        for (name, _), g in zip(named, found, strict=True)
        if g is not None
    }


def _cotangent(k: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(100 + k).standard_normal(shape).astype(np.float32)


def _by_onnxruntime(
    model: onnx.ModelProto, module: Any, given: Arguments
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, str]]:
    """Value and gradient of every trained tensor, and what the module calls them."""
    torch = need_torch()
    set_modes(module)
    with torch.no_grad():
        outputs = [y for y in outputs_of(module, given) if torch.is_tensor(y)]
        shapes = [tuple(y.shape) if y.is_floating_point() else None for y in outputs]
    arrays = given.arrays()
    bound = bind(model, {name: array.shape for name, array in arrays.items()})
    step = differentiate(
        _with_total(bound, shapes), loss_output=TOTAL, optimizer=None, dropout=False
    )
    about = training_of(step)
    types, first = input_types(step), FirstValues(model, step)
    names = [name for name, _ in about.gradients]
    feeds = {name: first.of(Variable(name, "", "model"), *types[name]) for name in names}
    feeds |= {name: array for name, array in arrays.items() if name in types}
    session = open_session(step, session_options(Options(threads=1, pattern=False)))
    results = run_file(session, [gradient for _, gradient in about.gradients], feeds)
    labels = {weight.name: weight.label for weight in about.weights if weight.label}
    return {name: (feeds[name], g) for name, g in zip(names, results, strict=True)}, labels


def _with_total(model: onnx.ModelProto, shapes: list[tuple[int, ...] | None]) -> onnx.ModelProto:
    """The model with one more output: all outputs, each element times a random number, summed."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, parts = made.graph, []
    for k, (value, shape) in enumerate(zip(model.graph.output, shapes, strict=False)):
        if shape is None:
            continue
        name = f"{SEED_PREFIX}{k}"
        # In a node, as constants of the code are, so that nobody takes it for a parameter.
        seed = numpy_helper.from_array(_cotangent(k, shape), name)
        graph.node.append(helper.make_node("Constant", [], [name], value=seed))
        wide = f"{name}_wide"
        graph.node.append(helper.make_node("Cast", [value.name], [wide], to=TensorProto.FLOAT))
        graph.node.append(helper.make_node("Mul", [wide, name], [f"{name}_part"]))
        graph.node.append(
            helper.make_node("ReduceSum", [f"{name}_part"], [f"{name}_sum"], keepdims=0)
        )
        parts.append(f"{name}_sum")
    graph.node.append(helper.make_node("Sum", parts, [TOTAL]))
    graph.output.append(helper.make_tensor_value_info(TOTAL, TensorProto.FLOAT, []))
    return made
