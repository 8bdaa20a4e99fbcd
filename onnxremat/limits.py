"""How much of what a file asks for is taken on: everything that a few bytes of input can make grow
without end has a limit here, and an error that names it."""

from __future__ import annotations

import errno
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onnxremat.errors import UsageError

NO_PIPES = "pipes and devices are not read: opening one may wait for ever, reading one never end"
NODES = 200_000  # nodes of a graph once its functions are written out
NESTING = 100  # lists and objects inside each other in a JSON file (protobuf's own limit, too)
PLAN_RUNS = 100_000  # runs of ops in a plan
OP_RUNS = 1000  # of them of one op: onnxruntime takes minutes over more copies that are alike
PLAN_BYTES = 256 << 20  # of a plan written out as text
# Runs of ops in the bodies of loops, in one run of a model that is measured: onnxruntime's profiler
# keeps a million events, and at least four runs are profiled in one go.
BODY_RUNS = 250_000
SPARSE_BYTES = 1_900_000_000  # of a sparse weight once it is dense: it goes into the model
TENSOR_BYTES = 1 << 46  # of one tensor: sums over any graph stay whole numbers of 64 bits
THREADS = 256  # of a session or the planner, four times the processors where that is more
POINTS = 1000  # of a curve of budgets
DEVICES = 64  # of a machine
PLACED_ON = 10_000  # accelerators of a placement graph, and CPUs
CALLS = 100  # pieces of one of them
SAMPLES = 1000  # inside a pipeline
OP_SECONDS = 1e6  # of one run of an op, in a file of costs


def check(
    count: int, limit: int, what: str, *, where: str = "", hint: str, kind: type[UsageError]
) -> None:
    """Refuse what goes beyond a limit.

    Args:
        what: what there are so many of: ``nodes once its functions are written out``.
        kind: of error.

    Raises:
        UsageError: of that kind, with the count, the limit and ``hint``.
    """
    if count > limit:
        raise kind(
            f"too many {what}: {_words(count)}",
            where=where,
            why=f"at most {limit} are taken on",
            hint=hint,
        )


def at_least(number: float, least: float, what: str) -> None:
    """Refuse a number of a caller that says nothing sensible; the command line does so itself.

    Args:
        what: it is, by the name of its argument.

    Raises:
        UsageError: it is below ``least``, or no number.
    """
    if isinstance(number, str) or not number >= least:
        raise UsageError(f"{what} is {number}", hint=f"{least:g} or more")


def whole(number: Any, what: str) -> int:
    """A whole number of a caller, of whichever kind, as Python's own.

    Raises:
        UsageError: it is none: cut off it would be another.
    """
    try:
        return operator.index(number)
    except TypeError:
        raise UsageError(f"{what} is {number}", hint="a whole number") from None


def above(number: float, least: float, what: str) -> None:
    """The same of a number that may not be ``least`` itself.

    Raises:
        UsageError: it is not above ``least``, or no number.
    """
    if isinstance(number, str) or not number > least:
        raise UsageError(f"{what} is {number}", hint=f"above {least:g}")


def below(number: float, most: float, what: str) -> None:
    """The same of a number from 0 up to, but not, ``most``.

    Raises:
        UsageError: it is negative, not below ``most``, or no number.
    """
    if isinstance(number, str) or not 0 <= number < most:
        raise UsageError(f"{what} is {number}", hint=f"from 0 to below {most:g}")


def between(number: float, least: float, most: float, what: str) -> None:
    """The same of a number that has a largest value.

    Raises:
        UsageError: it is not between ``least`` and ``most``, both included, or no number.
    """
    if isinstance(number, str) or not least <= number <= most:
        raise UsageError(f"{what} is {number}", hint=f"from {least:g} to {most:g}")


def regular(path: Path) -> Path:
    """The same path, of a file that can be read to its end.

    Raises:
        OSError: of a pipe or a device.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, f"no regular file: {NO_PIPES}", str(path))
    return path


def _words(count: int) -> str:
    """Counts of functions that call each other can have hundreds of digits."""
    return str(count) if count < 10**18 else "more than 10^18"


def sizes_of(name: str, sizes: Iterable[Any]) -> tuple[int, ...]:
    """Sizes of a tensor as Python's own numbers, whichever kind of whole numbers they are.

    Raises:
        UsageError: one is no whole number from 1, or it is a single number.
    """
    if not isinstance(sizes, Iterable):
        raise UsageError(f"the shape of '{name}' is {sizes!r}", hint="sizes as a tuple: (1, 64)")
    given = list(sizes)
    odd = [size for size in given if not hasattr(size, "__index__") or size < 1]
    if odd:
        raise UsageError(f"a size of '{name}' is {odd[0]!r}", hint="a whole number from 1")
    return tuple(map(operator.index, given))
