"""Whether an exported file trains what its module trains: parameters and gradients compared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import OnnxrematError, UsageError, VerificationError
from onnxremat.exporting.compare import EXACT, Compared, compared, rounding_of
from onnxremat.exporting.pytorch import (
    Arguments,
    Inputs,
    arguments,
    at_rest,
    facts_of,
    need_module,
    need_torch,
    untouched,
    values_of,
)
from onnxremat.grad.exported.given import Given, matched
from onnxremat.grad.exported.listed import Parameters
from onnxremat.graph.onnx_io import read_model

CONSTANT = "the file has a constant in the place of one, or one in the place of a constant"
ROWS, WORDS = 2, 2  # made-up inputs: of an open dimension, and below which integers are


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
        at_export: its error with the values that parameters have, where ``error`` is one with other
            values, and wrong; else None.
    """

    name: str
    stored: bool
    trained: bool
    wanted: bool
    error: float | None
    under: tuple[str, ...] = ()
    copied: bool = False
    allowed: float = EXACT
    at_export: float | None = None

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
            off = f"its gradient is off by {self.error:.1e}"
            if self.at_export is None or not self.at_export <= self.allowed:
                return off
            return off + " once parameters have other values, for " + CONSTANT
        return ""


@dataclass(frozen=True)
class ExportCheck:
    """What :func:`check_export` found. ``str()`` of it is a table.

    Attributes:
        parameters: every parameter of the module.
        others: what the file trains by default that is no parameter.
        failed: why no gradients could be compared, "" where they were.
        outputs: what is wrong with the outputs, "" where nothing is.
    """

    parameters: tuple[Checked, ...]
    others: tuple[str, ...] = ()
    failed: str = ""
    outputs: str = ""

    @property
    def problems(self) -> list[str]:
        """One line each."""
        found = [f"{p.name}: {p.problem}" for p in self.parameters if p.problem]
        found += [f"{name}: trained, but no parameter of the module" for name in self.others]
        return [*(line for line in (self.failed, self.outputs) if line), *found]

    @property
    def ok(self) -> bool:
        """Whether the file trains what the module trains, with the same gradients."""
        return not self.problems

    def require(self, hint: str = "export it with onnxremat.export") -> ExportCheck:
        """Itself.

        Args:
            hint: of the error, what to do.

        Raises:
            VerificationError: something is wrong.
        """
        if self.ok:
            return self
        raise VerificationError(
            "the file does not train as the module does",
            why="; ".join(self.problems[:5]) + ("; ..." if len(self.problems) > 5 else ""),
            hint=hint,
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
        return "\n".join([*rows, *(line for line in (self.failed, self.outputs) if line)])


def check_export(
    module: Any, path: str | os.PathLike[str], example_inputs: Inputs = None
) -> ExportCheck:
    """Compare an exported file with its module: parameters, and their gradients by autograd.

    The loss is the sum of all outputs, each element times a random number. Dropout is off on both
    sides, batch normalization normalises by the batch, where it is not frozen, nor in eval mode
    inside a module in training mode. Parameters have other values than those of the export, up to a
    tenth larger or smaller, as far as the file has each of their numbers as it is. The module is
    left as it was.

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
    with untouched(module):
        given = _inputs(module, model, example_inputs)
        return check_model(module, model, given, at_rest(module))


def check_model(
    module: Any, model: onnx.ModelProto, given: Arguments, resting: Mapping[str, Any]
) -> ExportCheck:
    """Compare a model with its module (:func:`check_export`), whose modes, buffers and random
    numbers this changes.

    Args:
        resting: parts that stay in eval mode.
    """
    facts, values = facts_of(module), values_of(module)
    own = {name: values[name] for name in (*facts.trained, *facts.frozen)}
    stored = {t.name: t for t in model.graph.initializer}
    whole = {name for name, v in values.items() if _same(stored.get(name), v)}
    try:
        found = compared(module, model, given, own, resting)
    except OnnxrematError as error:
        found = Compared(failed=f"no gradients: {error.what} ({error.why})")
    return _told(facts, found, whole, own, model)


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
    facts: Parameters, found: Compared, whole: set[str], own: Mapping[str, np.ndarray],
    model: onnx.ModelProto,
) -> ExportCheck:  # fmt: skip
    """Parameters without a part in the outputs are not listed: neither side trains them."""
    failed, under = bool(found.failed), found.under
    names = [
        name
        for name in (*facts.trained, *facts.frozen)
        if failed or name in found.errors or name in under or name in facts.frozen
    ]
    renamed = _renamed(model, own) if {*names} - whole - {*under} else {}
    rows = [
        Checked(
            name,
            name in whole or name in under.get(name, ()),
            name in found.trained or (failed and name in whole),
            name in facts.trained,
            found.errors.get(name),
            tuple(n for n in under.get(name, renamed.get(name, ())) if n != name),
            name in found.copied,
            found.allowed.get(name, rounding_of(own[name])[0]),
            found.at_export.get(name),
        )
        for name in names
    ]
    return ExportCheck(tuple(rows), tuple(sorted(found.others)), found.failed, _outputs(found))


def _outputs(found: Compared) -> str:
    if found.total <= found.total_allowed:
        return ""
    off = f"the outputs are off by {found.total:.1e} of their norm"
    if not found.total_at_export <= found.total_allowed:
        return off
    return off + " once parameters have other values, for " + CONSTANT


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
