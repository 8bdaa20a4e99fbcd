"""Which values depend on rows of a batch, and on which: of a graph, or of a body."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from onnxremat.graph.ir import Graph, Op, Tensor
from onnxremat.graph.spans import Facts, Span

ANY = -1  # the axis of a value that is of one row, whatever its axes are


@dataclass(frozen=True)
class Rows:
    """On which rows a value depends.

    Attributes:
        axis: along which each entry depends on one row, or :data:`ANY`.
        rows: the row of each entry; for ANY the one row that all of it depends on.
    """

    axis: int
    rows: tuple[int, ...]

    def moved(self, by: int) -> Rows:
        """With so many more axes before them."""
        return self if self.axis == ANY else replace(self, axis=self.axis + by)

    def read_by(self, read: Span | None) -> int | None:
        """The row that a stretch depends on (None for all of the value), None for more than one."""
        if self.axis == ANY or read is None or read.axis != self.axis:
            found = set(self.rows)
        else:
            found = set(self.rows[read.first : read.end])
        return found.pop() if len(found) == 1 else None


def along(axis: int, rows: tuple[int, ...]) -> Rows:
    """Entries of an axis that depend on these rows."""
    return Rows(ANY, rows[:1]) if len(set(rows)) == 1 else Rows(axis, rows)


@dataclass(frozen=True)
class Lost:
    """Why it is not shown that entries of a value depend on one row each.

    Attributes:
        op: that made it, or what it is made of.
        value: that it made.
        why: the fact behind it.
        sure: a rule says that they depend on more.
    """

    op: Op
    value: str
    why: str
    sure: bool = False


@dataclass
class Told:
    """What is known of the values of a graph, or of a body, as its ops are gone through. Values
    that are neither ``own`` nor ``lost`` depend on no row, or on sizes alone.

    Attributes:
        own: on which rows values depend, where that is shown.
        lost: values that depend on rows, of which it is not.
        counts: values that follow from how many rows there are: other ones of a part of them.
    """

    graph: Graph
    own: dict[str, Rows]
    lost: dict[str, Lost] = field(default_factory=dict)
    counts: set[str] = field(default_factory=set)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """With the sizes of the run that was seen: to look at rows, not to write any."""
        return {name: replace(each, seen=False) for name, each in self.graph.tensors.items()}

    @cached_property
    def facts(self) -> Facts:
        """Of the graph with these sizes."""
        return Facts(replace(self.graph, tensors=self.tensors))

    def depends(self, name: str) -> bool:
        """A value depends on rows."""
        return name in self.own or name in self.lost

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a value, () where it is not known."""
        return self.tensors[name].shape or ()

    def learn(self, name: str, found: Collection[Tensor]) -> None:
        """Type and size of a value, where they are not known and what it is made of has one."""
        known, kinds = self.tensors.get(name), {(each.dtype, each.shape) for each in found}
        if known is not None and known.shape is None and len(kinds) == 1:
            ((dtype, shape),) = kinds
            self.tensors[name] = replace(known, dtype=dtype, shape=shape)

    def one_row(self, op: Op) -> Rows | None:
        """The one row that all that an op reads depends on, None where there are more."""
        found = {self.own[name] for name in op.reads if name in self.own}
        return found.pop() if len(found) == 1 and next(iter(found)).axis == ANY else None

    def note(self, name: str, rows: Rows | Lost | None) -> None:
        """What was found of a value."""
        if isinstance(rows, Rows):
            self.own[name] = rows
        elif rows is not None:
            self.lost[name] = rows

    def known(self, name: str) -> Rows | Lost | None:
        """On which rows a value depends, why that is not known; None for on none."""
        return self.own.get(name) or self.lost.get(name)


def few(count: int) -> Iterator[int]:
    """Some of so many entries: the first, some in between, the last."""
    middle = count // 2
    return iter(sorted({0, min(1, count - 1), max(0, middle - 1), middle, count - 1}))
