"""Parts of a region that are like one before, moved along: on paper they are that one again.

Between its borders a region does the same for every stretch of its results, or for every second or
fourth where images grow or shrink inside. A part is told by what it is made of: which rows each op
computes and reads, which rows are there of the parts before it and of what others make, and what is
left of it, all counted from the first row of each value that it wants. Two parts that are told the
same are written with the same ops, under other names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from onnxremat.fission.twice import is_either
from onnxremat.fission.writer import Again, Stretch, Writer
from onnxremat.graph.ir import Op
from onnxremat.graph.spans import Piece, Span

if TYPE_CHECKING:
    from onnxremat.fission.part import Part

FEWEST = 4  # parts of which some may be alike: the first, the second and the last are not


@dataclass(frozen=True)
class _Written:
    """What a part has left when it was written.

    Attributes:
        ops: places of its ops in the writer's list.
        before: ops that others were again, until then.
        around: tensors that it reads and did not make.
        held, tiles, sums: what there is of kept values for the parts after it, with the first row
            of each value that it wanted; of results; and of sums.
        flat: tensors of these that are there under their real shape.
        views: Reshapes that were counted.
    """

    ops: range
    before: int
    around: Sequence[str]
    held: Mapping[str, tuple[tuple[Stretch, ...], int]]
    tiles: Mapping[str, str]
    sums: Mapping[str, str]
    flat: frozenset[str]
    views: int


class _Told(NamedTuple):
    """What a part is told by.

    Attributes:
        key: equal for parts that are alike.
        around: tensors that it reads and does not make, in an order that goes with the key.
        lists: integers that it reads, where they are not the same for all parts that are alike.
    """

    key: tuple[object, ...]
    around: list[str]
    lists: list[tuple[int]]


@dataclass
class Alike:
    """Parts of one region, which are only simulated."""

    writer: Writer
    known: dict[tuple[object, ...], _Written] = field(default_factory=dict)

    def write(self, part: Part) -> None:
        """Its ops, or those of a part like it again."""
        told = _Teller(part).told()
        written = self.known.get(told.key) if told else None
        if told is not None and written is not None:
            self._again(part, told, written)
            return
        first, views, writer = len(self.writer.ops), self.writer.views, self.writer
        part.write()
        if told is None:
            return
        held = {n: (part.held[n], part.first(n)) for n in part.held if n in part.rows.wanted}
        tiles = {n: writer.tiles[n][-1][0] for n in part.asked if n not in part.totals}
        sums = {name: part.totals[name].sum for name in part.asked if name in part.totals}
        left = (tensor for stretches, _ in held.values() for tensor, _ in stretches)
        names = chain(told.around, left, tiles.values())
        self.known[told.key] = _Written(
            range(first, len(writer.ops)), sum(len(each.ops) for each in writer.again),
            told.around, held, tiles, sums, frozenset(n for n in names if n in writer.flat),
            writer.views - views,
        )  # fmt: skip

    def _again(self, part: Part, told: _Told, written: _Written) -> None:
        """The ops of a part that was written once more, under other names."""
        writer, names = self.writer, dict(zip(written.around, told.around, strict=True))
        end = f"+{len(writer.again)}"

        def name_of(tensor: str) -> str:
            """Of what the part leaves."""
            if tensor not in names and tensor in writer.made:
                names[tensor] = tensor + end
                writer.made[tensor + end] = writer.made[tensor]
            return names.get(tensor, tensor)

        for value, (stretches, base) in written.held.items():
            by = part.first(value) - base
            part.held[value] = tuple(
                (name_of(tensor), Span(span.axis, span.first + by, span.end + by))
                for tensor, span in stretches
            )
        for value, tensor in written.tiles.items():
            before = writer.tiles.get(value, ())
            writer.tiles[value] = (*before, (name_of(tensor), part.asked[value]))
        for value, tensor in written.sums.items():
            part.totals[value].sum = name_of(tensor)
            part.totals[value].left -= 1
        writer.flat.update(dict.fromkeys(map(name_of, written.flat), ""))
        writer.views += written.views
        writer.lists.update(told.lists)
        writer.again.append(Again(len(writer.ops), written.ops, written.before, names))


class _Teller:
    """Of one part that is about to be written."""

    def __init__(self, part: Part) -> None:
        self.part, self.writer, self.rows = part, part.writer, part.rows
        self.inside = {name for op in part.ops for name in op.writes}
        self.base: dict[str, int] = {}  # of what others make
        self.key: list[object] = []
        self.around: list[str] = []
        self.lists: list[tuple[int]] = []

    def told(self) -> _Told | None:
        """None where what others make in parts would have to be joined for it."""
        part, wanted = self.part, self.rows.wanted
        for name, span in part.asked.items():
            self.key += [name, span.first - part.first(name), span.size]
        for name, total in part.totals.items():
            if name in part.asked:
                self.key += [bool(total.sum), total.left == 1]
                self._around(total.sum)
        for name in wanted:
            later = part.later.get(name)
            self.key += [name, None if later is None else later - part.first(name)]
            for tensor, span in part.held.get(name, ()):
                self.key += [span.first - part.first(name), span.size]
                self._around(tensor)
        for op in part.ops:
            piece = self.rows.pieces.get(op.name)
            if piece is not None and not self._op(op, piece):
                return None
        return _Told(tuple(self.key), self.around, self.lists)

    def _around(self, tensor: str) -> None:
        self.around.append(tensor)
        self.key.append(tensor in self.writer.flat)

    def _op(self, op: Op, piece: Piece) -> bool:
        """Tell of an op; False where something would have to be joined."""
        new, made = self.rows.new[op.name], piece.made
        first = next(self.part.first(name) for name in op.writes if name in self.rows.wanted)
        either, row = is_either(op), self.part.again.get(op.outputs[0])
        self.key += [op.name, new.first - first, new.size, made.first - first, made.size]
        for at, (name, span) in enumerate(zip(op.inputs, piece.reads, strict=True)):
            if at in piece.constants:
                self.key.append(piece.constants[at])
            elif not name or at in piece.unread:
                self.key.append("")
            elif span is None:
                if name in self.writer.tiles:
                    return False
            elif name in self.inside:
                self.key += [span.first - self.part.first(name), span.size]
                if either and row is not None:
                    self.key.append(span.first - row)
            elif not self._outside(name, span, (row or span.end) if either else None):
                return False
        return True

    def _outside(self, name: str, span: Span, row: int | None) -> bool:
        """Tell of rows that others make; False where they would have to be joined.

        Args:
            row: from which on they are made again, of what may be: all that others hold of it stays
                together then.
        """
        tiles = self.writer.tiles.get(name)
        if tiles is not None and tiles[0][1].axis != span.axis:
            return False
        base = self.base.setdefault(name, span.first)
        self.key += [span.first - base, span.size]
        for tensor, held in self.writer.stretches(name, span.axis):
            if held.first >= span.end:
                break
            both = held.overlap(span)
            if both.size <= 0:
                continue
            whole = both == held
            self.key += [both.first - base, both.size, whole]
            if row is not None:
                self.key += [held.first - base, held.size, held.end > row]
            if not whole:
                self.lists += [(both.first - held.first,), (both.end - held.first,)]
            self._around(tensor)
        return True
