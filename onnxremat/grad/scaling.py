"""Dynamic loss scaling: gradients too small for float16 are multiplied out of its reach.

The loss is multiplied by a power of two before the backward pass and gradients are divided by it.
Where a gradient is no finite number the update is skipped and the scale halved; after so many
good updates in a row it is doubled (Micikevicius et al. 2018, "Mixed Precision Training", section
3.2; the constants are PyTorch's). Scale and count are state of the step, beginning at zero: what
is kept is how often the first scale was doubled less how often it was halved.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import TensorProto as T

from onnxremat.errors import UsageError
from onnxremat.grad.tape import Tape

EXPONENT, GOOD = "loss_scale.doublings", "loss_scale.good_updates"
LARGEST = 3.4028234663852886e38  # of float32


@dataclass(frozen=True)
class LossScale:
    """A loss scale that finds its own size.

    Attributes:
        first: its first value, a power of two.
        patience: good updates after which it is doubled.

    Raises:
        UsageError: not a power of two, or no patience.
    """

    first: float = 65536.0
    patience: int = 2000

    def __post_init__(self) -> None:
        if self.first <= 0 or math.frexp(self.first)[0] != 0.5 or self.patience < 1:
            raise UsageError(
                f"a loss scale of {self.first} with patience {self.patience}",
                why="it is a power of two, so that scaling loses no digits; patience is at least 1",
            )

    def value(self, t: Tape) -> str:
        """Emit the scale, a float32 scalar."""
        doublings = t.declare(EXPONENT, T.FLOAT, ())
        exponent = t.add(doublings, math.log2(self.first))
        return t.op("Pow", t.constant(2.0, T.FLOAT), exponent, shape=())

    def next(self, t: Tape, finite: str) -> dict[str, str]:
        """Emit the new state from whether all gradients are finite."""
        doublings, good = t.declare(EXPONENT, T.FLOAT, ()), t.declare(GOOD, T.INT64, ())
        count = t.where(finite, t.add(good, 1), 0)
        grows = t.compare("GreaterOrEqual", count, self.patience)
        up = t.cast(grows, T.FLOAT)
        down = t.cast(t.op("Not", finite), T.FLOAT)
        return {EXPONENT: t.sub(t.add(doublings, up), down), GOOD: t.where(grows, 0, count)}


def dynamic_scale(
    asked: LossScale | bool | None, precision: str, optimized: bool
) -> LossScale | None:
    """The loss scale that a step adapts itself, if any.

    Raises:
        UsageError: one is asked for without an optimizer, which would tell when to.
    """
    if isinstance(asked, LossScale) and not optimized:
        raise UsageError("a LossScale needs an optimizer", hint="or take loss_scale=True")
    if isinstance(asked, LossScale):
        return asked
    return LossScale() if precision == "fp16" and optimized and not asked else None


def square_sum(t: Tape, gradients: Iterable[str]) -> str:
    """Emit the sum of the squares of all elements: in float64 where a gradient is of it, which may
    hold what float32 cannot, else in float32."""
    gradients = list(gradients)
    widest = T.DOUBLE if any(t.dtype(each) == T.DOUBLE for each in gradients) else T.FLOAT
    squares = []
    for gradient in gradients:
        wide = t.cast(gradient, widest)
        rank = t.rank(wide)
        squares.append(t.reduce("SumSquare", wide, range(rank)) if rank else t.mul(wide, wide))
    return squares[0] if len(squares) == 1 else t.op("Sum", *squares)


def all_finite(t: Tape, gradients: Iterable[str]) -> str:
    """Emit whether no gradient holds an infinity or a not-a-number, a boolean scalar.

    By the sum of all squares: one pass over each, and no comparison holds for what is no number.
    """
    total = square_sum(t, gradients)
    largest = sys.float_info.max if t.dtype(total) == T.DOUBLE else LARGEST
    return t.compare("LessOrEqual", total, largest)


def kept_unless(t: Tape, finite: str, made: Mapping[str, str]) -> dict[str, str]:
    """Emit new values, or the old ones where the update is skipped."""
    return {name: t.where(finite, value, name) for name, value in made.items()}


def only_finite(t: Tape, value: str, old: str) -> str:
    """Emit a statistic, each element the old one where the new is no finite number."""
    good = t.compare("LessOrEqual", t.op("Abs", value), LARGEST)
    return t.where(good, value, old)
