"""Steps of graphs in parts, written down once as numbers, and bytes of any choice of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

FIRST = 1 << 12  # entries of a list that grows, in the beginning


class Made(NamedTuple):
    """A value that a step makes.

    Attributes:
        size: bytes of a buffer of its own.
        shares: the value whose buffer it is in, "" for none.
        takes: values whose buffers it may take over where they die, the first that does.
    """

    name: str
    size: int
    shares: str
    takes: tuple[str, ...]


class Step(NamedTuple):
    """An op as memory sees it; weights and inputs are left out.

    Attributes:
        reads: every input.
        place: of the op of the whole graph that it is, or is a piece of; -1 for a copy.
    """

    makes: tuple[Made, ...]
    reads: tuple[str, ...]
    scratch: int
    place: int


class LackingError(Exception):
    """A value is read before it is made."""


class _List:
    """Numbers that more are added to."""

    def __init__(self) -> None:
        self.all: Numbers = np.zeros(FIRST, np.int64)
        self.count = 0

    def add(self, numbers: Sequence[int] | Numbers) -> None:
        """More, at the end."""
        end = self.count + len(numbers)
        if end >= len(self.all):
            self.all = np.concatenate([self.all, np.zeros(max(end, self.count), np.int64)])
        self.all[self.count : end] = numbers
        self.count = end


class Ledger:
    """Steps that are written down, in stretches.

    Args:
        places: ops of the whole graph.
        outputs: values that stay to the end.
    """

    def __init__(self, places: int, outputs: Iterable[str]) -> None:
        from onnxremat.fission.kernels import replay  # compiled: loaded when it is needed

        self._compiled = replay
        self._places = places
        self._number: dict[str, int] = {}
        self._values = 0  # that have a number
        self._other: Numbers = np.arange(FIRST)  # itself for each number, between calls
        self._lists = {name: _List() for name in replay.Steps._fields}
        for name in self._lists:
            if name.endswith("_at"):
                self._lists[name].add([0])
        self._outputs = np.array([self._of(name) for name in outputs], np.int64)
        self._work = replay.scratch_for(FIRST, FIRST)

    def __len__(self) -> int:
        return self._lists["place"].count

    def _of(self, name: str) -> int:
        found = self._number.get(name)
        if found is None:
            found = self._number[name] = self._values
            self._values += 1
        return found

    def add(self, steps: Sequence[Step]) -> tuple[int, int]:
        """Write steps down; the first of them, and the one behind the last."""
        begin, of = len(self), self._of
        rows: dict[str, list[int]] = {name: [] for name in self._lists}
        ends = {name: self._lists[name].count for name in ("read", "make", "take")}
        for step in steps:
            rows["scratch"].append(step.scratch)
            rows["place"].append(step.place)
            rows["read"] += [of(name) for name in step.reads]
            rows["read_at"].append(ends["read"] + len(rows["read"]))
            for made in step.makes:
                rows["make"].append(of(made.name))
                rows["size"].append(made.size)
                rows["shares"].append(of(made.shares) if made.shares else -1)
                rows["take"] += [of(name) for name in made.takes]
                rows["take_at"].append(ends["take"] + len(rows["take"]))
            rows["make_at"].append(ends["make"] + len(rows["make"]))
        for name, numbers in rows.items():
            self._lists[name].add(numbers)
        return begin, len(self)

    def add_again(self, first: int, end: int, names: Mapping[str, str]) -> None:
        """Write down once more what is written down from one step to another, for other values.

        Args:
            names: of values that other steps make or read to those in their places; what else the
                steps make are values that no other step reads.
        """
        places = {name: each.all for name, each in self._lists.items()}
        reads, makes = (slice(*places[f"{n}_at"][[first, end]]) for n in ("read", "make"))
        takes = slice(*places["take_at"][[makes.start, makes.stop]])
        named = [(self._of(old), self._of(new)) for old, new in names.items()]
        made = places["make"][makes].copy()
        fresh = np.arange(self._values, self._values + len(made))
        self._values += len(made)
        if self._values > len(self._other):
            self._other = np.arange(2 * self._values)
        other = self._other
        other[made] = fresh
        for old, new in named:
            other[old] = new
        shares = places["shares"][makes]
        rows = {
            "scratch": places["scratch"][first:end],
            "place": places["place"][first:end],
            "read": other[places["read"][reads]],
            "make": other[made],
            "size": places["size"][makes],
            "shares": np.where(shares < 0, shares, other[shares]),
            "take": other[places["take"][takes]],
        }
        spans = {"read": (first, end), "make": (first, end), "take": (makes.start, makes.stop)}
        for name, (begin, last) in spans.items():
            at, count = places[f"{name}_at"], self._lists[name].count
            rows[f"{name}_at"] = at[begin + 1 : last + 1] - at[begin] + count
        for name, numbers in rows.items():
            self._lists[name].add(numbers)
        other[made] = made
        for old, _ in named:
            other[old] = old

    def levels(
        self, stretches: Sequence[tuple[int, int]], beside: int = 0
    ) -> tuple[tuple[int, ...], int]:
        """The most bytes live while steps of each op of the whole graph run, and at all.

        Args:
            stretches: of steps, in the order in which they run.
            beside: bytes that are there all the time.

        Raises:
            LackingError: one reads what none before it makes.
        """
        spans = np.array(stretches, np.int64).reshape(-1, 2)
        first, end = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
        values, steps = self._values, int((end - first).sum())
        if values > len(self._work.uses) or steps >= len(self._work.change):
            self._work = self._compiled.scratch_for(2 * values, 2 * steps)
        arrays = self._compiled.Steps(*(each.all for each in self._lists.values()))
        levels = np.zeros(self._places, np.int64)
        peak = self._compiled.replay(arrays, self._work, first, end, self._outputs, levels)
        if peak < 0:
            raise LackingError(
                next((n for n, at in self._number.items() if at == -1 - peak), "a value")
            )
        return tuple((levels + beside).tolist()), int(peak) + beside
