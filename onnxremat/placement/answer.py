"""What a method answers: a placement, its value, and what is proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic

from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.splits import Split

SAME = 1e-6  # relative: value and bound that are nearer than this have met


@dataclass(frozen=True, eq=False)
class Answer:
    """A method's best placement.

    Attributes:
        method: who found it.
        value: of the objective, ``inf`` without a placement.
        bound: proven: no placement that is asked for has less; 0 where nothing is known.
        bound_by: who proved the bound.
        where: a device per node, shape (n,), or None.
        order: devices as stages, in the order data flows, where they have one.
        seconds: it took.
        notes: sentences for people.
        slots: of latency: a slot per node, -1 for a CPU core of its own; slot s is a piece of
            accelerator ``s // calls``.
        calls: pieces per accelerator.
    """

    method: str
    value: float
    bound: float
    bound_by: str
    where: Index | None
    order: tuple[int, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    slots: Index | None = None
    calls: int = 1

    @property
    def gap(self) -> float:
        """Share of the value that is not proven needed."""
        return max(0.0, 1 - self.bound / self.value) if 0 < self.value < inf else 0.0

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``infeasible`` (proven) or ``unknown``."""
        if self.where is None:
            return "infeasible" if self.bound == inf else "unknown"
        return "optimal" if self.bound >= self.value * (1 - SAME) - 1e-12 else "feasible"

    def split(self, graph: PlacementGraph) -> Split:
        """As a file has it.

        Raises:
            ValueError: there is no placement.
        """
        if self.where is None:
            raise ValueError("no placement")
        if self.slots is None:
            return Split.of(graph, self.where.tolist(), self.order)
        groups: list[list[int]] = [[] for _ in range(graph.accelerators * self.calls + 1)]
        for node, slot in enumerate(self.slots.tolist()):
            groups[slot].append(node)  # the last one: CPUs
        rows = tuple(tuple(group) for group in groups)
        return Split(rows[:-1], rows[-1:])


@dataclass
class Work:
    """How long a method may take, and whether somebody wants it to end.

    Attributes:
        seconds: from its making on.
        gap: share of the value that is good enough.
        seed: of what is drawn at random.
        stop: polled; True ends the work with what there is.
        progress: told (value, bound, stage).
        clock: what counts its seconds; :func:`time.process_time` on a machine that is busy.
    """

    seconds: float = 60.0
    gap: float = 0.0
    seed: int = 0
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[float, float, str], None] = lambda value, bound, stage: None
    clock: Callable[[], float] = monotonic
    begin: float = field(init=False)

    def __post_init__(self) -> None:
        self.begin = self.clock()

    @property
    def taken(self) -> float:
        """Seconds so far."""
        return self.clock() - self.begin

    @property
    def left(self) -> float:
        """Seconds that remain, 0 when it is to end."""
        return 0.0 if self.stop() else max(0.0, self.seconds - self.taken)

    def met(self, value: float, bound: float, least: float = 0.0) -> bool:
        """Whether the bound is within the gap, or ``least``, of the value."""
        return bound >= value * (1 - max(self.gap, least))

    def share(self, most: float) -> Work:
        """A part of the work that may take at most so many seconds."""
        return replace(self, seconds=min(most, self.left))
