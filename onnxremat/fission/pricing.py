"""Bytes and seconds of a graph with regions in parts, found without writing it.

What a region's parts are depends on the region and on what it reads in parts, and on nothing else:
it is written once, as a *fragment*, and put together with those of the other regions for every
choice it is part of. Bytes are those of :func:`onnxremat.schedule.simulate.simulate`, by the same
rules (a test compares); seconds are estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from onnxremat.cost.analytic import windows_written_out
from onnxremat.cost.table import KernelCosts
from onnxremat.fission.ledger import LackingError, Ledger, Made, Step
from onnxremat.fission.masked import Reach
from onnxremat.fission.paper import Paper
from onnxremat.fission.part import write_region, write_whole
from onnxremat.fission.region import Region
from onnxremat.fission.writer import Stretch, Writer
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.spans import CannotSplitError
from onnxremat.graph.traits import is_alias, takeover_inputs

# Copies, measured as pairs of Slices and a Concat of 0.2 to 6 MiB: what stays in a core's cache is
# there four times as fast as what does not.
CACHED = 512 << 10  # bytes of a copy that do
FAR = 5e9, 2e10  # bytes per second beyond, at least and at most
COPIES = frozenset({"Concat", "Slice"})  # ops that neither share nor take over a buffer
CONVOLUTIONS = frozenset({"Conv", "FusedConv"})
WORKSPACE = 64 << 10  # bytes of scratch that a piece of these takes as the whole does, or more
INTEGER = 16  # bytes of a number that says where a part ends, and of the same found as it runs
MOST_OPS = 6000  # of a graph in parts
REMEMBERED = 400_000  # steps of fragments, beside those of the whole graph


@dataclass(frozen=True)
class Structures:
    """Bytes that a session keeps of nodes and constants, beside what they compute with; all 0 where
    a limit does not count them.

    Attributes:
        ops: of every op, and so of each of its pieces.
        node, read: of a node that only copies, and of each value that such a one reads.
        listed: of integers that nodes read, and what finds them as a graph runs.
        whole: of all ops of the graph as it is.
    """

    ops: Mapping[str, int] = field(default_factory=dict)
    node: int = 0
    read: int = 0
    listed: int = 0
    whole: int = 0


@dataclass(frozen=True)
class Whole:
    """What is to be computed in parts.

    Attributes:
        graph: in base order, with sizes.
        seconds, scratch: of its ops.
        block: channels per block of convolutions laid out in blocks.
        reach: how far rows of masked scores see.
        rate: bytes per second, read or written, of ops that are as quick as what they move.
        kernels: what each kernel costs beside its rows.
        again: large images may be made again, which takes time: for limits that no other way keeps.
        more: bytes of its weights beyond those of the graph as it is.
        kept: what a session keeps of its nodes, where limits count that.
    """

    graph: Graph
    seconds: Mapping[str, float]
    scratch: Mapping[str, int]
    block: int = 1
    reach: Reach = field(default_factory=dict)
    rate: float = 0.0
    kernels: KernelCosts = field(default_factory=KernelCosts)
    again: bool = False
    more: int = 0
    kept: Structures = field(default_factory=Structures)


class Effort(NamedTuple):
    """Time, as far as it can be told without what a kernel costs beside its rows.

    Attributes:
        seconds: of rows.
        calls: of kernels, as many as there are more than in the whole graph.
        again: bytes that stay in a cache: copies, and what a piece reads that others have read.
    """

    seconds: float
    calls: float
    again: float

    def more(self, seconds: float, calls: float, again: float) -> Effort:
        """And this."""
        return Effort(self.seconds + seconds, self.calls + calls, self.again + again)

    def at(self, kernels: KernelCosts) -> float:
        """Seconds."""
        return self.seconds + self.calls * kernels.call + self.again / kernels.rate


@dataclass(frozen=True)
class Priced:
    """A graph in parts, simulated.

    Attributes:
        levels: most bytes live while a piece of each op of the whole graph runs, copies for it
            included, and ``beside``.
        peak: live bytes and scratch at the worst step, and ``beside``.
        seconds: estimated from those of whole ops.
        effort: what they are made of.
        beside: bytes of constants beyond those of the graph as it is: weights, and integers that
            say where parts begin and end, which are found anew as the graph runs; and of what a
            session keeps of nodes, where that counts.
    """

    regions: tuple[Region, ...]
    levels: tuple[int, ...]
    peak: int
    seconds: float
    effort: Effort
    beside: int


@dataclass(frozen=True)
class _Fragment:
    """An op outside of regions, or all parts of a region.

    Attributes:
        steps: where they are written down.
        tiles: results that are there in parts then, and joined ones as nothing.
        lists: integers that they read.
        kept: bytes that a session keeps of them.
    """

    steps: tuple[int, int]
    tiles: Mapping[str, tuple[Stretch, ...]]
    effort: Effort
    lists: frozenset[tuple[int, ...]]
    kept: int


class Prices:
    """Of one graph in any regions.

    Attributes:
        paper: of the graph.
        written: regions that were.
    """

    def __init__(self, of: Whole) -> None:
        self.of, self.graph, self.paper = of, of.graph, Paper(of.graph)
        self.written = set[object]()
        fixed = (Role.INPUT, Role.WEIGHT)
        self._there = frozenset(n for n, t in of.graph.tensors.items() if t.role in fixed)
        self._reading: dict[object, tuple[str, ...]] = {}  # what regions read
        self._number = count()
        self._names = [op.reads for op in of.graph.ops]
        self._outputs = frozenset(of.graph.outputs)
        self._begin()

    def _begin(self) -> None:
        """With nothing written down but the ops of the whole graph."""
        self._ledger = Ledger(len(self.graph.ops), self.graph.outputs)
        self._tensors: dict[str, Tensor] = {}  # what fragments hand out
        self._known: dict[object, tuple[_Fragment, object]] = {}
        self._stretches: dict[tuple[Stretch, ...], tuple[Stretch, ...]] = {}
        self._plain = [self._written(place, {}) for place in range(len(self.graph.ops))]
        self._most = len(self._ledger) + REMEMBERED

    def priced(self, regions: tuple[Region, ...]) -> Priced:
        """The graph with these regions.

        Raises:
            CannotSplitError: it cannot be written.
        """
        if sum(region.pieces for region in regions) > MOST_OPS:
            raise CannotSplitError("too many parts")
        if len(self._ledger) > self._most:
            self._begin()
        fragments = self._fragments(regions)
        lists = frozenset[tuple[int, ...]]().union(*(each.lists for each in fragments))
        zero = 2 if lists else 0  # and what it is made of
        beside = self.of.more + INTEGER * (zero + sum(map(len, lists)))
        nodes = sum([each.kept for each in fragments]) + self.of.kept.listed * len(lists)
        beside += max(0, nodes - self.of.kept.whole)
        try:
            levels, peak = self._ledger.levels([each.steps for each in fragments], beside)
        except LackingError as error:
            raise CannotSplitError(f"{error} is not there whole") from None
        columns = zip(*[each.effort for each in fragments], strict=True)
        effort = Effort(*(sum(column) for column in columns))
        return Priced(regions, levels, peak, effort.at(self.of.kernels), effort, beside)

    def _fragments(self, regions: Sequence[Region]) -> list[_Fragment]:
        tiles: dict[str, tuple[Stretch, ...]] = {}
        found, readers = [], set[int]()  # of what is there in parts, or was
        for item in (*self.paper.due(regions), None):
            if isinstance(item, int) and (
                item not in readers or tiles.keys().isdisjoint(self._names[item])
            ):
                found.append(self._plain[item])
                continue
            fragment = self._fragment(item, tiles)
            for name, stretches in fragment.tiles.items():
                tiles[name] = stretches
                readers.update(self.graph.readers.get(name, ()))
                if not stretches:
                    del tiles[name]
            found.append(fragment)
        return found

    def _fragment(
        self, item: int | Region | None, tiles: Mapping[str, tuple[Stretch, ...]]
    ) -> _Fragment:
        """Of an op, a region or the outputs of the graph, written where it is not known.

        Args:
            tiles: what is there in parts.
        """
        key, reads = self._reads(item)
        given = {name: tiles[name] for name in reads if name in tiles}
        # Stretches of one value with the same bounds are one object, which is held.
        whole = key, tuple([(name, id(stretches)) for name, stretches in given.items()])
        found, _ = self._known.get(whole, (None, None))
        if found is None:
            found = self._written(item, given)
            self._known[whole] = found, given
        return found

    def _reads(self, item: int | Region | None) -> tuple[object, Sequence[str]]:
        """What a fragment is known by, and what it may read."""
        if item is None:
            return None, self.graph.outputs
        if not isinstance(item, Region):
            return item, self._names[item]
        key = item.key
        if key not in self._reading:
            places = self.paper.members(item)
            names = dict.fromkeys(n for place in places for n in self._names[place])
            self._reading[key] = tuple(names)
        return key, self._reading[key]

    def _written(
        self, item: int | Region | None, given: Mapping[str, tuple[Stretch, ...]]
    ) -> _Fragment:
        tag = f"~{next(self._number)}"
        writer = Writer(self.paper, self.of.block, tag, self._tensors)
        writer.tiles.update(given)
        if item is None:
            for name in self.graph.outputs:
                writer.whole(name)
        elif isinstance(item, Region):
            write_region(writer, item, tag, alike=not self.of.reach)
            self.written.add(item.key)
        else:
            write_whole(writer, item)
        if self.of.reach:
            writer.leave_out_hidden(self.of.reach)
        return self._digested(writer, given)

    def _digested(self, writer: Writer, given: Mapping[str, tuple[Stretch, ...]]) -> _Fragment:
        tiles = {name: writer.tiles.get(name, ()) for name in (*given, *writer.tiles)}
        names = self._by_bounds(writer, tiles)
        steps = self._steps(writer, names)
        effort, kept = self._effort(writer), self._kept(writer)
        return _Fragment(steps, tiles, effort, frozenset(writer.lists), kept)

    def _steps(self, writer: Writer, names: Mapping[str, str]) -> tuple[int, int]:
        """Ops written down."""
        ledger, begin, done = self._ledger, len(self._ledger), 0
        for again in writer.again:
            ledger.add([self._step(writer, op, names) for op in writer.ops[done : again.at]])
            done, first = again.at, begin + again.ops.start + again.before
            known = {names.get(a, a): names.get(b, b) for a, b in again.names.items() if a != b}
            ledger.add_again(first, first + len(again.ops), known)
        ledger.add([self._step(writer, op, names) for op in writer.ops[done:]])
        return begin, len(ledger)

    def _by_bounds(self, writer: Writer, tiles: dict[str, tuple[Stretch, ...]]) -> dict[str, str]:
        """Names of the stretches that a fragment hands out, by value and bounds: so that what reads
        them is the same whatever they are made of.

        Args:
            tiles: with these names, then.
        """
        names: dict[str, str] = {}
        for value, stretches in tiles.items():
            found = list[Stretch]()
            for name, span in stretches:
                own = name
                if name in writer.made and name not in names:
                    own = names[name] = f"{value}~{span.axis}:{span.first}:{span.end}"
                    self._tensors[own] = writer.made[name]
                found.append((own, span))
            tiles[value] = self._stretches.setdefault(tuple(found), tuple(found))
        return names

    def _step(self, writer: Writer, op: Op, names: Mapping[str, str]) -> Step:
        there, tensors, known = self._there, writer.tensors, names.get
        reads = tuple(
            [known(name, name) for name in op.inputs + op.captures if name and name not in there]
        )
        makes = []
        for position, name in enumerate(op.outputs):
            if not name:
                continue
            shared, takes = "", tuple[str, ...]()
            if position == 0 and op.op_type not in COPIES and name not in self._outputs:
                shared = known(op.inputs[0], op.inputs[0]) if is_alias(op) else ""
                takes = () if shared else _takes(op, tensors, there, names)
            makes.append(Made(known(name, name), tensors[name].bytes, shared, takes))
        of, share = writer.shares.get(op.name, (op.name, 1.0))
        scratch = self.of.scratch.get(of, 0)
        least = 0
        if op.op_type in CONVOLUTIONS:
            weights, out = self.of.graph.tensors[op.inputs[1]].shape, tensors[op.outputs[0]].shape
            fewer = (
                windows_written_out(op, weights or (), out or ()) if share < 1 and scratch else 0
            )
            least = max(min(scratch, WORKSPACE), fewer)
        scratch = max(round(scratch * share), least)
        return Step(tuple(makes), reads, scratch, self.paper.place.get(of, -1))

    def _effort(self, writer: Writer) -> Effort:
        found = Effort(0.0, float(writer.views), 0.0)
        known: dict[range, Effort] = {}
        for ops in (range(len(writer.ops)), *(again.ops for again in writer.again)):
            if ops not in known:
                known[ops] = self._effort_of(writer, writer.ops[ops.start : ops.stop])
            found = found.more(*known[ops])
        return found

    def _kept(self, writer: Writer) -> int:
        """Bytes that a session keeps of its nodes."""
        of = self.of.kept
        if not of.node:
            return 0
        each = [
            of.ops.get(writer.shares.get(op.name, (op.name, 1.0))[0])
            or of.node + of.read * len(op.inputs)
            for op in writer.ops
        ]
        again = sum(sum(each[more.ops.start : more.ops.stop]) for more in writer.again)
        return sum(each) + again + (of.node + 2 * of.read) * writer.views

    def _effort_of(self, writer: Writer, ops: Sequence[Op]) -> Effort:
        """Of some of the ops, Reshapes that are not among them aside."""
        seconds, calls, again = 0.0, 0.0, 0.0
        for op in ops:
            if op.name in writer.shares:
                of, share = writer.shares[op.name]
                seconds += self.of.seconds.get(of, 0.0) * share
                if not is_alias(op):  # one call and one reading are among the whole op's seconds
                    calls += 1 - share
                    again += (1 - share) * self._whole_bytes(op)
            elif op.name not in writer.copied:  # or a Reshape between layouts
                seconds += self.of.seconds.get(op.name, 0.0)
                calls += op.name not in self.of.seconds
            if op.name in writer.copied:
                near, far = copy_effort(writer.copied[op.name], self.of.rate)
                calls, again, seconds = calls + 1, again + near, seconds + far
        return Effort(seconds, calls, again)

    def _whole_bytes(self, op: Op) -> int:
        """Of what a piece of an op reads whole, weights above all."""
        tensors = self.graph.tensors
        return sum([tensors[name].bytes for name in op.reads if name in tensors])


def copy_effort(size: int, rate: float = 0.0) -> tuple[int, float]:
    """Of a copy of so many bytes those that stay in a cache, and seconds for the others.

    Args:
        rate: bytes per second that other ops move: a copy reads and writes as quickly.
    """
    near, (least, most) = min(size, CACHED), FAR
    return near, (size - near) / min(most, max(least, rate / 2))


def _takes(
    op: Op, tensors: Mapping[str, Tensor], there: frozenset[str], known: Mapping[str, str]
) -> tuple[str, ...]:
    """Inputs, as they are known, whose buffers the first output may take over where they die."""
    positions, out = takeover_inputs(op), tensors[op.outputs[0]]
    if not positions or out.shape is None:
        return ()
    names = (op.inputs[position] for position in positions)
    return tuple(
        known.get(name, name) for name in names
        if name and name not in there and (tensors[name].shape, tensors[name].bytes)
        == (out.shape, out.bytes)
    )  # fmt: skip
