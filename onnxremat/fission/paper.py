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
        self._rows: dict[tuple[object, ...], list[Rows]] = {}

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

    def due(self, regions: Sequence[Region]) -> Iterator[int | Region]:
        """Ops outside of regions and whole regions, each once all that it reads is there. What is
        made again is where a region needs it alone.

        Raises:
            CannotSplitError: as :meth:`rows`.
        """
        ops, done = self.graph.ops, set[int]()
        of = {name: region for region in regions for name in region.ops}

        def begun(index: int) -> tuple[Iterator[int], list[int], int | Region]:
            """What an op, or its region, waits for; what is done with it; and itself."""
            region = of.get(ops[index].name)
            inside = [index] if region is None else self.members(region)
            if region is not None:
                done.update(inside)
                written = {name for rows in self.rows(region) for name in rows.pieces}
                inside = [place for place in inside if ops[place].name in written]
            again = region.again if region is not None else {}
            before = sorted({at for place in inside for at in self._waits(place, again)})
            return iter(before), inside, index if region is None else region

        def asked(index: int) -> Iterator[int | Region]:
            waiting = [begun(index)]  # chains may be longer than Python's stack
            while waiting:
                before, inside, item = waiting[-1]
                other = next((place for place in before if place not in done), None)
                if other is not None:
                    waiting.append(begun(other))
                    continue
                waiting.pop()
                done.update(inside)
                yield item

        for index, op in enumerate(ops):
            if index in done:
                continue
            if op.name in of:
                yield from asked(index)
            elif not is_again(op):  # in a topological order, all that it reads is there
                done.add(index)
                yield index

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
