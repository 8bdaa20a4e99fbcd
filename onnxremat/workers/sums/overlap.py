"""A step in parts whose gradients travel while later parts compute.

Per batch the parts run in the order of an :class:`.exchange.Exchange`. As soon as the gradients of
a bucket are complete they are added up over all processes, beside what follows. Their update waits
until the next batch needs one of the parameters, layer by layer, or somebody asks for the state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from onnxremat.graph.ir import Graph, Op
from onnxremat.ort.binding import BoundState
from onnxremat.ort.session import Options
from onnxremat.workers.courier import Courier, Transfer
from onnxremat.workers.pieces import Flight, Piece, Pieces, Pool, cut, results
from onnxremat.workers.spans import Spans
from onnxremat.workers.sums.exchange import Exchange
from onnxremat.workers.sums.halves import Halves
from onnxremat.workers.sums.layers import Key, Layers, U, in_turn, label
from onnxremat.workers.sums.rooms import Rooms

LATEST = 256  # numbers kept of what was timed
SHARED, WHOLE = -1, -2  # parts of an update beside those of layers


def update_parts(update: Graph, homes: Mapping[str, Key]) -> dict[int, list[Op]]:
    """An update's ops by the layer whose sums they need, or ``SHARED`` where they need none; all in
    one part ``WHOLE`` where some need those of several layers (a norm of all).

    Args:
        homes: part of the step that completes each sum.
    """
    needs = {name: {layer} for name, (_, layer) in homes.items()}
    parts: dict[int, list[Op]] = {}
    for op in update.ops:
        wanted = set[int]().union(*(needs.get(name, ()) for name in op.reads))
        needs.update(dict.fromkeys(op.writes, wanted))
        if len(wanted) > 1:
            return {WHOLE: list(update.ops)}
        parts.setdefault(min(wanted, default=SHARED), []).append(op)
    return parts


@dataclass(frozen=True)
class InParts:
    """A step in parts, and what they work on.

    Attributes:
        halves: the step and its update.
        layers: the step, cut.
        state: arrays of both.
        sums: where sums of gradients lie, layer by layer.
        written: sums that need not be zeros before a batch.
        times: what sums over all processes are multiplied by.
        options: of sessions.
        folder: of weights that are left in files.
    """

    halves: Halves
    layers: Layers
    state: BoundState
    sums: Rooms
    written: frozenset[str]
    times: float
    options: Options
    folder: Path | None


class Overlapped:
    """Runs a step whose gradients travel beside it.

    Args:
        parts: the step.
        courier: brings sums to all processes.

    Attributes:
        exchange: the order of parts and transfers; may be changed between updates.
        share: what sums over all processes have to be multiplied by for means over them.
        completes: whether the next batch completes the sums; then they leave.
        crowded: all cores compute, and what brings sums takes time of them.
        seconds: per part those of its latest runs, without what transfers took of their core;
            whoever reads them may empty it.
        elapsed: the same as the clock has it, from the end of what was done or waited for before.
        sent: the latest buckets and their transfers.
        travelled: of the latest sums their bytes and seconds, and whether they came while parts
            ran, so that nobody waited; likewise.
        turns: the latest seconds between the parts of one batch and those of the next; likewise.
        begun: when the latest batches began; likewise.
    """

    def __init__(self, parts: InParts, courier: Courier) -> None:
        self._parts, self._courier = parts, courier
        self._state, self._layers = parts.state, parts.layers
        halves, about, homes = parts.halves, parts.halves.about, parts.halves.homes(parts.layers)
        pieces = cut(halves.step, parts.layers.parts, about)
        updates = cut(halves.update, self._update_parts(halves, homes), halves.told)
        pool = Pool()
        self._step = Pieces(pieces, parts.state, parts.options, pool, parts.folder)
        self._update = Pieces(updates, parts.state, parts.options, pool)
        self._results = [about.loss, *about.outputs]
        self._sums: dict[int, list[str]] = {}
        for name, (_, layer) in homes.items():
            self._sums.setdefault(layer, []).append(name)
        touched = {part: _touched(piece) for part, piece in updates.items()}
        self._needs = {
            key: [part for part in updates if not touched[part].isdisjoint(_over(piece))]
            for key, piece in pieces.items()
        }
        self.exchange = Exchange(0, ())
        self.share = 1.0
        self.completes: Callable[[], bool] = lambda: True
        self.crowded = False
        self.seconds: dict[Key, deque[float]] = {}
        self.elapsed: dict[Key, deque[float]] = {}
        self.sent: deque[tuple[tuple[int, ...], Transfer]] = deque(maxlen=LATEST)
        self.travelled: deque[tuple[int, float, bool]] = deque(maxlen=LATEST)
        self.turns: deque[float] = deque(maxlen=LATEST)
        self.begun: deque[float] = deque(maxlen=LATEST)
        self._ended = self._before = 0.0
        self.spans = Spans()
        self.spans.watch(courier)
        self._travel: dict[int, Transfer] = {}  # by layer
        self._due: Flight | None = None  # of the update that goes on
        self._left: set[int] = set()  # its parts that have not run yet

    def _update_parts(self, halves: Halves, homes: Mapping[str, Key]) -> dict[int, list[Op]]:
        return update_parts(halves.update, homes)

    # ---- a batch -----------------------------------------------------------------------

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One batch; results are copies."""
        flight = self._step.flight(feeds, self._results)
        leaving, exchange = self.completes(), self.exchange
        order = [k for k in in_turn(self._layers.count, exchange.late) if k in self._step.pieces]
        last = {layer: key for key in order for layer in [key[1]]}
        made, waiting = set[int](), list(exchange.buckets)
        self.begun.append(time.perf_counter())
        self.turns.append(self.begun[-1] - self._ended)
        self._before = self.begun[-1]
        for key in order:
            for part in self._needs[key]:
                self._updated(part)
            self._timed(key, label(key), partial(self._step.run, key, flight))
            if last[key[1]] == key:
                made.add(key[1])
            while leaving and waiting and made.issuperset(waiting[0]):
                self._leave(waiting.pop(0))
        self._ended = time.perf_counter()
        found = results(flight, self._results)
        flight.end()
        return found

    def _timed(self, key: Key, name: str, run: Callable[[], None]) -> None:
        """Run a part, and note what it took without what transfers took of its core."""
        begin, worked = time.perf_counter(), self._courier.worked
        run()
        end = time.perf_counter()
        others = self._courier.worked - worked if self.crowded else 0.0
        self.seconds.setdefault(key, deque(maxlen=LATEST)).append(max(end - begin - others, 0.0))
        self.elapsed.setdefault(key, deque(maxlen=LATEST)).append(end - self._before)
        self._before = end
        self.spans.add("compute", name, begin, end)

    def describe(self) -> str:
        """How sums travel, in a sentence."""
        return f"{self._layers.count} layers, their sums travel while others compute"

    @property
    def worked(self) -> float:
        """Seconds of a core that transfers took so far."""
        return self._courier.worked

    def abandon(self) -> None:
        """Stop the run that is on, and every later one; from any thread."""
        self._step.abandon()
        self._update.abandon()

    # ---- sums and updates --------------------------------------------------------------

    def _leave(self, bucket: Sequence[int]) -> None:
        arrays = self._parts.sums.slices(bucket)
        if arrays:
            name = "sums of layers " + ", ".join(map(str, bucket))
            transfer = self._courier.add_up(arrays, name, self._parts.times)
            self._travel.update(dict.fromkeys(bucket, transfer))
            self.sent.append((tuple(bucket), transfer))

    def _leave_all(self) -> None:
        for bucket in self.exchange.buckets:
            self._leave(bucket)

    def update(self, feeds: Mapping[str, np.ndarray]) -> None:
        """From now on parameters are updated as their sums arrive; sums that have not left yet
        leave now."""
        if not self._travel:
            self._leave_all()
        self._due = self._update.flight(feeds)
        self._left = set(self._update.pieces)
        if SHARED in self._left:
            self._updated(SHARED)

    def settle(self) -> None:
        """All updates are made."""
        for part in sorted(self._left):
            self._updated(part)

    def _emptied(self, layers: Iterable[int]) -> None:
        """Sums of these layers begin anew, as far as that takes zeros."""
        for name in {name for layer in layers for name in self._sums[layer]} - self._parts.written:
            self._state.arrays[name].fill(0)

    def _updated(self, part: int) -> None:
        """The update of a layer is made."""
        if part not in self._left or self._due is None:
            return
        layers = sorted(self._sums) if part == WHOLE else [part] if part in self._sums else []
        for layer in layers:
            if layer in self._travel:
                transfer = self._travel.pop(layer)
                beside = transfer.done.is_set()
                with self.spans.during("wait", f"sums of layer {layer}"):
                    self._courier.wait(transfer)
                self._before = time.perf_counter()
                self.travelled.append((transfer.size, transfer.end - transfer.begin, beside))
        due, name = self._due, f"update {part}" if part >= 0 else "update"
        self._timed((U, part), name, partial(self._update.run, part, due))
        self._emptied(layers)
        self._left.remove(part)
        if not self._left:
            self._due.end()
            self._due = None


def _over(piece: Piece) -> set[str]:
    """State that a part of the step reads or overwrites where it lies."""
    return {*piece.states, *(old for old, _ in piece.placed)}


def _touched(piece: Piece) -> set[str]:
    """State that a part of an update overwrites, and the sums it reads, which are emptied."""
    return {*piece.states, *(old for old, _ in piece.copied)}
