"""A graph whose regions are worked out many times: what several of them need is looked up once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from onnxremat.fission.region import Region
from onnxremat.fission.rows import Rows, rows_of
from onnxremat.fission.twice import is_again, is_either
from onnxremat.graph.axes import blocked_values
from onnxremat.graph.ir import Graph
from onnxremat.graph.spans import CannotSplitError, Facts

LAST = 256  # regions that are remembered


class Paper:
    """Facts of one graph.

    Attributes:
        place: of each op in the order.
        writes: what it writes.
        before: places of the ops whose outputs it reads.
        blocked: values whose channels lie in blocks.
        either: values that stand for either, what is held or what is made again, and what is held.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.facts = graph, Facts(graph)
        self.blocked = blocked_values(graph)
        self.place = {op.name: index for index, op in enumerate(graph.ops)}
        self.writes = [op.writes for op in graph.ops]
        self.before = graph.predecessors()
        self.either = {op.outputs[0]: op.inputs[0] for op in graph.ops if is_either(op)}
        self._again = [is_again(op) for op in graph.ops]
        self._rows: dict[tuple[object, ...], list[Rows]] = {}
        self._needs: dict[tuple[object, ...], Sequence[int]] = {}

    def rows(self, region: Region) -> list[Rows]:
        """As :func:`rows_of`.

        Raises:
            CannotSplitError: as there.
        """
        found = self._rows.pop(region.key, None)
        if found is None:
            found = rows_of(self.graph, self.facts, region)
            while len(self._rows) >= LAST:
                del self._rows[next(iter(self._rows))]
        self._rows[region.key] = found
        return found

    def members(self, region: Region) -> list[int]:
        """Places of the ops of a region, ascending.

        Raises:
            CannotSplitError: one is not in the graph.
        """
        try:
            return sorted(self.place[name] for name in region.ops)
        except KeyError as error:
            raise CannotSplitError(f"{error} is not in the graph") from None

    def due(self, regions: Sequence[Region]) -> list[int | Region]:
        """Ops outside of regions and whole regions, each once all that it reads is there. What is
        made again is where a region needs it alone.

        Raises:
            CannotSplitError: as :meth:`rows`.
        """
        of = {place: region for region in regions for place in self.members(region)}
        done, again = [False] * len(self.before), self._again
        found: list[int | Region] = []
        for index in range(len(done)):
            if done[index]:
                continue
            if index in of:
                self._asked(index, of, done, found)
            elif not again[index]:  # in a topological order, all that it reads is there
                done[index] = True
                found.append(index)
        return found

    def _asked(
        self, index: int, of: Mapping[int, Region], done: list[bool], found: list[int | Region]
    ) -> None:
        """A region, after what it waits for."""

        def begun(index: int) -> tuple[Iterator[int], int | Region]:
            """What an op, or its region, waits for; and itself."""
            if index not in of:
                return iter(sorted(set(self._waits(index, {})))), index
            region = of[index]
            for place in self.members(region):
                done[place] = True
            return iter(self._needed(region)), region

        waiting = [begun(index)]  # chains may be longer than Python's stack
        while waiting:
            before, item = waiting[-1]
            other = next((place for place in before if not done[place]), None)
            if other is not None:
                waiting.append(begun(other))
                continue
            waiting.pop()
            if isinstance(item, int):
                done[item] = True
            found.append(item)

    def _needed(self, region: Region) -> Sequence[int]:
        """Places of the ops that a region waits for.

        Raises:
            CannotSplitError: others read more of it than its results; and as :meth:`rows`.
        """
        found = self._needs.pop(region.key, None)
        if found is None:
            if lacking := self._unseen(region):
                raise CannotSplitError(f"{lacking} is not there whole")
            pieces = {name for rows in self.rows(region) for name in rows.pieces}
            inside = [at for at in self.members(region) if self.graph.ops[at].name in pieces]
            found = sorted({at for place in inside for at in self._waits(place, region.again)})
            while len(self._needs) >= LAST:
                del self._needs[next(iter(self._needs))]
        self._needs[region.key] = found
        return found

    def _unseen(self, region: Region) -> str:
        """A value of a region that others read and that it does not hand out, "" for none. What
        stands for either, and what is made again, may be left out where it is not needed."""
        graph, inside, axes = self.graph, set(self.members(region)), region.axes
        for place in inside:
            for name in self.writes[place]:
                for other in graph.readers.get(name, ()) if name not in axes else ():
                    op = graph.ops[other]
                    if other not in inside and not (self._again[other] or is_either(op)):
                        return name
        return ""

    def _waits(self, place: int, again: Mapping[str, int]) -> Sequence[int]:
        """Places of the ops that make what an op reads.

        Args:
            again: as of its region.
        """
        op = self.graph.ops[place]
        if not is_either(op):
            return self.before[place]
        row = again.get(op.outputs[0])
        held, made = (self.graph.producer[name] for name in op.inputs)
        if row is None:
            return (held,)
        return (held, made) if row else (made,)
