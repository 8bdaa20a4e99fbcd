"""Gradients of a module and of the training step of its file compared, with other values of the
parameters than those of the export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from onnxremat.exporting.held import Numbers
from onnxremat.exporting.moved import holding, moved, rounded
from onnxremat.exporting.pytorch import Arguments, need_torch
from onnxremat.exporting.summed import FileStep, Summed, by_autograd, output_shapes

TOLD = 0.9  # of a parameter's elements with a gradient: trained as a whole
EXACT, VANISHING = 1e-4, 1e-6  # of a gradient's norm; of the largest norm, below which one is 0
HALF = 2e-2, 2e-3  # both in half precision, whose numbers are 1e-3 apart
OUTPUTS = 1e-3, 2e-2  # of the norm of the outputs; in half precision
DRAWS = 3  # inputs: a rectifier within rounding of 0 is so for one, a wrong gradient for all
SHAKEN = 4  # times what rounding the parameters changes: deep nets with rectifiers, small batches
TOTAL = ""  # the name under which outputs are compared


@dataclass
class Compared:
    """What comparing found.

    Attributes:
        errors: of the gradient, per parameter with a part in the outputs; None where the file's
            step has none. Relative to the norm.
        allowed: what rounding may make of them.
        at_export: errors at the values of the export, of those that are wrong at other values.
        trained: parameters that are trained as a whole.
        under, copied, others: as of :class:`onnxremat.exporting.held.Gathered`.
        total, total_allowed, total_at_export: of the outputs, likewise.
        failed: why nothing was compared.
    """

    errors: dict[str, float | None] = field(default_factory=dict)
    allowed: dict[str, float] = field(default_factory=dict)
    at_export: dict[str, float | None] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    under: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)
    others: tuple[str, ...] = ()
    total: float = 0.0
    total_allowed: float = OUTPUTS[0]
    total_at_export: float = 0.0
    failed: str = ""

    def wrong(self) -> list[str]:
        """Names with an error that rounding does not make; ``TOTAL`` for the outputs."""
        names = [n for n, e in self.errors.items() if e is not None and not e <= self.allowed[n]]
        return names + [TOTAL] * (not self.total <= self.total_allowed)


def compared(
    module: Any, model: onnx.ModelProto, given: Arguments, values: Mapping[str, np.ndarray],
    resting: Mapping[str, Any],
) -> Compared:  # fmt: skip
    """The errors are the least over draws of inputs and values, as many as were needed.

    Args:
        values: per parameter of the module.

    Raises:
        OnnxrematError: the model has no training step, or does not run.
    """
    step = FileStep(model, output_shapes(module, given), given.arrays())
    numbers = Numbers(values, step.values, step.labels)
    sides = _Sides(module, step, numbers, resting)
    movable = {name: values[name] for name in numbers.complete() if values[name].dtype.kind == "f"}
    found = Compared(under=numbers.under, others=numbers.others)
    for draw in range(DRAWS):
        call = _near(given, draw)
        others = moved(movable, draw)
        try:
            want = sides.wanted(call, others)
        except Exception:  # whatever the module does with such values
            movable = others = {}
            want = sides.wanted(call, others)
        _take_best(found, sides.compared(call, others, want), first=draw == 0)
        if not found.wrong():
            return found
    if movable:
        once = sides.compared(given, {}, sides.wanted(given, {}))
        found.at_export = {name: once.errors.get(name) for name in found.wrong()}
        found.total_at_export = once.total
    return found


def _take_best(found: Compared, once: Compared, first: bool) -> None:
    """Of each error the one that is least in view of what is allowed."""
    found.trained, found.copied = once.trained, once.copied
    for name, error in once.errors.items():
        known, allowed = found.errors.get(name), once.allowed[name]
        if name not in found.errors or error is None or known is None:
            best = first or error is None or name not in found.errors
        else:
            best = not error / allowed >= known / found.allowed[name]
        if best:
            found.errors[name], found.allowed[name] = error, allowed
    if first or not once.total / once.total_allowed >= found.total / found.total_allowed:
        found.total, found.total_allowed = once.total, once.total_allowed


@dataclass(frozen=True)
class _Sides:
    """The module, and the step of its file."""

    module: Any
    step: FileStep
    numbers: Numbers
    resting: Mapping[str, Any]

    def wanted(self, call: Arguments, values: Mapping[str, np.ndarray]) -> Summed:
        """By the module, with these inputs and values of parameters."""
        with holding(self.module, values):
            return by_autograd(self.module, call, self.resting)

    def compared(self, call: Arguments, values: Mapping[str, np.ndarray], want: Summed) -> Compared:
        """The file's step with these inputs and values of parameters."""
        result = self.step.run(call.arrays(), self.numbers.with_values(values))
        held = self.numbers.gather(result.gradients)
        ours = Summed(held.gradients, result.total)
        found = Compared(copied=held.copied)
        found.trained = {
            name
            for name, gradient in ours.gradients.items()
            if name not in want.gradients or _whole(gradient, want.gradients[name])
        }
        allowed = {name: rounding_of(value) for name, value in self.numbers.values.items()}
        half = any(value.dtype == np.float16 for value in self.numbers.values.values())
        found.total_allowed, found.total = OUTPUTS[half], _off(ours, want)
        found.allowed = {name: allowed[name][0] for name in want.gradients}
        found.errors = _errors(ours, want, allowed)
        if found.wrong():
            own = {name: values.get(name, self.numbers.values[name]) for name in want.gradients}
            shaken = self.wanted(call, rounded(own, 0))
            for name, error in _errors(shaken, want, allowed).items():
                found.allowed[name] = max(found.allowed[name], SHAKEN * (error or 0.0))
            found.total_allowed = max(found.total_allowed, SHAKEN * _off(shaken, want))
        return found


def rounding_of(value: np.ndarray) -> tuple[float, float]:
    """What rounding may make of a gradient's norm, and of one that is 0, of the largest one's."""
    return HALF if value.dtype == np.float16 else (EXACT, VANISHING)


def _whole(ours: np.ndarray, want: np.ndarray) -> bool:
    """Most elements with a gradient are trained; equal numbers cannot be told apart."""
    needed = want != 0
    return not needed.any() or bool((~np.isnan(ours[needed])).mean() > TOLD)


def _off(ours: Summed, want: Summed) -> float:
    """Difference of the totals, as a share of the norm of what they are sums of; 0 where the module
    has no finite total."""
    if not np.isfinite(want.total) or not want.size:
        return 0.0
    return abs(ours.total - want.total) / want.size


def _errors(
    ours: Summed, want: Summed, rounding: Mapping[str, tuple[float, float]]
) -> dict[str, float | None]:
    largest = max((_norm(g) for g in want.gradients.values()), default=1.0)
    return {
        name: _error(ours.gradients.get(name), gradient, largest, rounding[name])
        for name, gradient in want.gradients.items()
    }


def _error(
    ours: np.ndarray | None, want: np.ndarray, largest: float, rounding: tuple[float, float]
) -> float | None:
    if ours is None:
        return None
    exact, vanishing = rounding
    size = max(_norm(want), vanishing * largest / exact, 1e-30)
    return _norm(np.where(np.isnan(ours), 0.0, ours - want.astype(np.float64))) / size


def _norm(gradient: np.ndarray) -> float:
    return float(np.linalg.norm(gradient.astype(np.float64)))


def _near(given: Arguments, draw: int) -> Arguments:
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
