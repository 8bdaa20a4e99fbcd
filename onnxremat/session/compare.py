"""Are two runs the same? Bit by bit, or within a tolerance that is stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

# Relative to the largest magnitude of an output: what re-ordered float arithmetic costs.
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True)
class Difference:
    """How one set of outputs compares with another.

    Attributes:
        bit_equal: every output is the same to the last bit (NaN equals NaN).
        worst: largest ``max|a - b| / max|b|`` over the outputs, of those that are not ok if there
            are any.
        output: the output where that is.
        tolerance: what is allowed there.
        ok: bit-equal, or within tolerance everywhere.
        each: the same of every output by itself, where it is of several.
    """

    bit_equal: bool
    worst: float
    output: str
    tolerance: float
    ok: bool
    each: tuple[Difference, ...] = field(default=(), repr=False)

    @property
    def rank(self) -> tuple[bool, float]:
        """Of several the largest is the one to name: what is not ok, then what is farthest off."""
        return not self.ok, self.worst


def compare(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Difference:
    """Compare outputs by name; a missing output, another type or another shape is a difference."""
    each = [_difference(name, found.get(name), reference) for name, reference in wanted.items()]
    return replace(_worst("", each), each=tuple(each))


def _worst(name: str, each: Sequence[Difference]) -> Difference:
    """Of outputs, or of the members of a sequence: of those that are not ok, if there are any."""
    ok, bit_equal = all(one.ok for one in each), all(one.bit_equal for one in each)
    nothing = Difference(True, 0.0, name, 0.0, True)
    worst = max((nothing, *each), key=lambda one: one.rank)
    return replace(worst, bit_equal=bit_equal, ok=ok)


def _difference(name: str, found: Any, wanted: Any) -> Difference:
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        pairs = zip(found, wanted, strict=True)
        return _worst(name, [_difference(name, one, other) for one, other in pairs])
    if isinstance(wanted, dict) and isinstance(found, dict) and [*found] == [*wanted]:
        rows = ([made[key] for key in wanted] for made in (found, wanted))
        return _difference(name, *(np.array(row, _kind_of(row)) for row in rows))
    if not isinstance(wanted, np.ndarray) or not isinstance(found, np.ndarray):
        same = type(found) is type(wanted) and repr(found) == repr(wanted)  # NaN, too
        return Difference(same, 0.0 if same else np.inf, name, 0.0, same)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return Difference(False, np.inf, name, 0.0, False)
    texts = wanted.dtype.kind == "O"  # whose bytes are those of pointers
    if np.array_equal(found, wanted) if texts else found.tobytes() == wanted.tobytes():
        return Difference(True, 0.0, name, 0.0, True)
    if wanted.dtype.kind not in "fV":
        # Integers from float comparisons (an arg-max of near ties) may differ in a few places.
        share = float(np.mean(found != wanted))
        return Difference(False, share, name, 0.0, False)
    tolerance = TOLERANCE.get(wanted.dtype.name, 1e-1)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    others = a[~finite], b[~finite]  # infinities of either sign, and NaN
    if not (np.isfinite(a) == finite).all() or not np.array_equal(*others, equal_nan=True):
        return Difference(False, np.inf, name, tolerance, False)
    scale = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale
    return Difference(False, error, name, tolerance, error <= tolerance)


def _kind_of(values: Sequence[Any]) -> type:
    """Of what a map holds: ZipMap makes float32, which Python shows as its own floats."""
    return np.float32 if all(isinstance(value, float) for value in values) else object
