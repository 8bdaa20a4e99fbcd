"""Running statistics of batch normalizations, moved towards those of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from onnxremat.grad.scaling import LossScale, only_finite
from onnxremat.grad.tape import Tape
from onnxremat.grad.training_mode import Statistic


def moved_statistics(
    t: Tape, statistics: Sequence[Statistic], scale: LossScale | None
) -> dict[str, str]:
    """The new value of each running statistic by its name: keep x old + rest x of the batch. Of a
    module that is called twice it moves to those of the first call, then of the second. Old values
    are read last, so that one stage of a pipeline reads and writes them.

    Args:
        statistics: in the order of the calls.
        scale: of the loss; a step whose gradients overflow moves none.
    """
    moved = {}
    for name in dict.fromkeys(entry.name for entry in statistics):
        keep, parts = 1.0, list[str]()
        for entry in reversed([each for each in statistics if each.name == name]):
            parts.append(t.mul(entry.batch, entry.rest * keep))
            keep *= entry.keep
        value = t.add(t.mul(name, keep), reduce(t.add, reversed(parts)))
        moved[name] = value if scale is None else only_finite(t, value, name)
    return moved
