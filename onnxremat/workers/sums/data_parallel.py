"""Training on several processes, each with batches of its own: the mean of all gradients updates.

Where all ranks are on one machine, and the update is one of single elements, parameters and state
are there once and each rank updates its share of them. Else every rank holds all of both and makes
the same update, from sums of gradients that are the same bits everywhere. The sums of a layer lie
side by side, and those of the next layer behind them: they travel together without being copied.
"""

from __future__ import annotations

import os
import resource
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from onnxremat.cost.analytic import analytic_costs
from onnxremat.device.host import processors
from onnxremat.errors import MissingComponentError, UnsupportedError, UsageError
from onnxremat.grad.description import training_of
from onnxremat.grad.dropout import COUNTER
from onnxremat.grad.precision import HALVES
from onnxremat.grad.update import update_of
from onnxremat.graph.onnx_io import read_model
from onnxremat.ort.providers import CPU
from onnxremat.training.data import Batch, Data
from onnxremat.training.sessions import UNPLANNED
from onnxremat.training.state import Opening, Source, Step
from onnxremat.training.trainer import Trainer
from onnxremat.units import format_bytes
from onnxremat.workers.checksum import checksum
from onnxremat.workers.courier import Courier, Delay
from onnxremat.workers.mpi import Ranks
from onnxremat.workers.relay import raw_of
from onnxremat.workers.sums.alike import Formulas, formulas_of
from onnxremat.workers.sums.common_memory import CommonMemory
from onnxremat.workers.sums.exchange import MOST, Network, layers_for, plain_order
from onnxremat.workers.sums.gathering import gathering
from onnxremat.workers.sums.halves import Halves, halves_of, written
from onnxremat.workers.sums.layers import Layers, even_cuts, joined, most_late
from onnxremat.workers.sums.overlap import InParts, Overlapped
from onnxremat.workers.sums.rooms import Rooms
from onnxremat.workers.sums.sharded import Sharded, Shares, Tail, shares_of
from onnxremat.workers.sums.shared_update import SharedUpdate, Together
from onnxremat.workers.sums.tuning import Tuning, measured_network

BUCKET = 8 << 20  # bytes that are added up at once where nothing overlaps
APART = 1 << 40  # between the counters of dropout of two ranks
EXCHANGE = "exchange"  # in a checkpoint


@dataclass(frozen=True)
class Overlap:
    """How gradients travel while others are made.

    Attributes:
        layers: that a step is cut to, at most; None for as many as its network makes of use, with
            the weight gradients of each beside the rest of its backward pass where those are few.
        delay: of every transfer, for tests and studies.
        choose: find the exchange; else the order stays plain.
    """

    layers: int | None = None
    delay: Delay | None = None
    choose: bool = True


class DataParallel(Trainer):
    """A trainer that is one of several.

    The mean over ranks is that of the joined batch where the loss is a mean over rows. Batch
    normalization uses the rows of its own rank; its running statistics are means over ranks. Masks
    of dropout differ between ranks.

    A step that no plan holds together runs in parts, and its sums travel meanwhile; a planned one
    is run as it is, and its sums travel after it.

    Args:
        ranks: who the others are; otherwise as :class:`Trainer`.
        overlap: how sums travel; None for after the step.
        shard: each rank keeps the optimizer's state of some parameters (ZeRO-1).

    Attributes:
        rooms: where sums of gradients lie.
        overlapped: the step in parts, None where it is in one piece.
        tuning: how its exchange was found, None where it is not looked for.

    Raises:
        UnsupportedError: ``shard``, and a step that has to stay in one piece.
        MissingComponentError: ``shard``, and an MPI that several threads may not call.
    """

    def __init__(
        self,
        graph: Source,
        weights: Any = None,
        *,
        ranks: Ranks,
        overlap: Overlap | None = Overlap(),
        shard: bool = False,
        **options: Any,
    ) -> None:
        self.ranks, self._overlap, self._shard = ranks, overlap, shard
        self._shares: Shares | None = None
        self._elsewhere = frozenset[str]()
        self._common = CommonMemory(ranks) if ranks.size > 1 else None
        self._courier: Courier | None = None
        self._network = Network(0.0, 0.0)
        self._given, self._written = options.get("accumulate"), frozenset[str]()
        self.alone = not shard
        self._halves: Halves | None = None
        self._layers: Layers | None = None
        self._formulas: Formulas | None = None
        self.overlapped: Overlapped | None = None
        self.tuning: Tuning | None = None
        if options.get("options") is not None or (options.get("providers") or [CPU])[0] != CPU:
            self._overlap = None
        super().__init__(graph, weights, **options)
        self._draw_apart()

    def _open(self, graph: Source, without: str) -> Step:
        step = super()._open(graph, without)
        self.ranks.require_same(checksum(step.model), "the training graph")
        planned = any(entry.key == "onnxremat.plan" for entry in step.model.metadata_props)
        if planned:
            self._overlap = None
        if self._shard and self._overlap is None:
            raise UnsupportedError(
                "the optimizer's state of this step cannot be shared out",
                why="it is planned, or not for the processor, and stays in one piece",
                hint="give the step as differentiate made it",
            )
        if update_of(step.model) is not None and self._overlap is None:
            return step
        if step.file is not None:  # what is cut has no file of its own
            step = Step(read_model(step.file), step.folder, None)
        step = replace(step, model=gathering(step.model))
        if self._overlap is not None:
            self._meet(self._overlap.delay or Delay())
            halves = halves_of(step.model, step.folder)
            self._formulas = self._shared(halves, self._overlap)
            if (self._given or training_of(step.model).accumulate) == 1:
                halves, self._written = written(halves)
            self._halves, self._layers = halves, self._cut(halves, self._overlap.layers)
            if self._shard:
                self._shares = shares_of(halves, self.ranks.size)
                self._elsewhere = self._shares.elsewhere(self.ranks.rank)
        return step

    def _shared(self, halves: Halves, overlap: Overlap) -> Formulas | None:
        """The update by formulas, where all ranks share it: they have memory in common, and nothing
        else is asked for."""
        common = self._common if self._courier else None
        if common is None or self._shard or overlap != Overlap() or common.stretch(1) is None:
            return None
        return formulas_of(halves.update, halves.told, self.ranks.size)

    def _meet(self, delay: Delay) -> None:
        """Who brings sums, and how fast."""
        courier = self._courier = self.ranks.courier(delay)
        if courier is not None:
            courier.common = self._common
            weakref.finalize(self, courier.close)
            self._network = measured_network(courier, self.ranks)

    def _cut(self, halves: Halves, wanted: int | None) -> Layers:
        """The layers; where the network is quick, in fewer and larger parts. Half precision is
        rounded between parts, whose number is then not left to what a network took."""
        if self._formulas is not None:
            return joined(halves.layers([]))
        sums = (halves.about.updates[name] for _, name in halves.told.gradients)
        size = sum(halves.step.tensors[name].bytes for name in sums)
        half = any(t.dtype in HALVES.values() for t in halves.step.tensors.values())
        quick = layers_for(self._network, size, analytic_costs(halves.step).total)
        count = wanted or (MOST if half else quick)
        layers = halves.layers(even_cuts(halves.step, count))
        return layers if wanted or count == MOST else joined(layers)

    def _holds(self, name: str) -> bool:
        """Not the state of optimizers that other ranks keep."""
        return name not in self._elsewhere

    def _arrange(self, arrays: dict[str, np.ndarray]) -> None:
        """Sums side by side, layer by layer."""
        names = sorted(v.input for v in self.training.parameters)
        own = [crc32(raw_of(arrays[name]).data) for name in names]
        self.ranks.require_same(own, "the first value of a parameter")
        layer = dict.fromkeys(self._sums, 0)
        if self._formulas is not None:
            rows = enumerate(self._formulas.alike)
            layer = {name: k for k, alike in rows for name in alike.sums}
        elif self._halves and self._layers:
            layer = {name: at for name, (_, at) in self._halves.homes(self._layers).items()}
        self.rooms = Rooms(arrays, layer, self._common.stretch if self._common else None)

    def _start(self, opening: Opening) -> None:
        courier = self._courier
        halves, layers, overlap = self._halves, self._layers, self._overlap
        if not (courier and opening.update and halves and layers and overlap):
            if self._shard:
                raise MissingComponentError(
                    "sharing out the optimizer's state needs an MPI that several threads may call",
                    why="this one was started without MPI_THREAD_MULTIPLE",
                    hint="another MPI, or mpi4py's default settings (mpi4py.rc.thread_level)",
                )
            super()._start(opening)
            return
        parts = InParts(
            halves, layers, self._held, self.rooms, self._written, 1.0 / self.ranks.size,
            replace(UNPLANNED, threads=opening.device.threads), opening.step.folder,
        )  # fmt: skip
        runs = self._runs(parts, courier)
        threads = opening.device.threads or processors()
        runs.crowded = processors() <= threads * self.ranks.sharing()
        runs.exchange = plain_order(layers.count)
        runs.completes = lambda: self.progress.gathered + 1 >= self.accumulate
        self.overlapped = self._session = self._update = runs
        self._how = runs.describe
        if overlap.choose and not isinstance(runs, Together):
            sizes = [sum(a.nbytes for a in self.rooms.slices([k])) for k in range(layers.count)]
            self.tuning = Tuning(runs, self.ranks, self._network, sizes, most_late(layers))

    def _runs(self, parts: InParts, courier: Courier) -> Overlapped:
        """The step in parts, and who updates what."""
        if self._formulas is not None and self._common is not None:
            # Before the step is bound: it moves what that binds.
            part = SharedUpdate(self._formulas, parts, self._moved, self.ranks, self._common)
            together = Together(parts, courier)
            together.part, together.ranks, together.share = part, self.ranks, 1.0 / self.ranks.size
            together.eager = self.ranks.eager()
            return together
        if self._shares is None:
            return Overlapped(parts, courier)
        sharded = Sharded(parts, courier)
        here = self.ranks.rank, self.ranks.size
        sharded.tail = Tail(self._shares, *here, courier, self._held, parts.options)
        return sharded

    def update(self, rate: float | None = None) -> None:
        """Update with the mean of everybody's gradients gathered so far; where sums travel beside
        computing, from when they arrive."""
        if self.overlapped is None:
            super().update(rate)
        elif self.progress.gathered:
            if self._formulas is None:
                self._average()
            share = self.overlapped.share / self.progress.gathered
            self.overlapped.update(self._of_update(self._rate(rate), share))
            self.progress.gathered = 0
            self.progress.updates += 1
            if self.tuning is not None:
                self.tuning.updated()

    def pull_state(self) -> None:
        """Parameters and state as they are after the last update."""
        if self.overlapped is not None:
            self.overlapped.settle()
        super().pull_state()

    def _join(self, gathered: int) -> int:
        """Everybody's gradients into everybody's sums; how many batches they are of."""
        self.pull_state()
        if self._common and self._common.holds(self.rooms.all):
            self._common.add_up(self.rooms.all)
        else:
            parts = [np.array_split(room, -(-room.nbytes // BUCKET)) for room in self.rooms.all]
            self.ranks.add_up([array for row in parts for array in row])
        self._average()
        self.push_state()
        return gathered * self.ranks.size

    def _average(self) -> None:
        """Statistics become means over ranks."""
        self.ranks.average([self._held.arrays[name] for name in self._moved])

    @property
    def _moved(self) -> list[str]:
        """Statistics that the step itself moves."""
        return [v.input for v in self.training.states if v.initial == "model" and v.output]

    def step(self, batch: Batch, rate: float | None = None) -> float:
        """One step on this rank's batch; returns the mean of all ranks' losses."""
        return self.ranks.mean(super().step(batch, rate))

    @property
    def rows(self) -> int:
        """Rows of a step, of all processes together."""
        return self.batch_size * self.ranks.size

    @property
    def joined(self) -> int:
        """Batches of the step's own rows whose gradients an update averages."""
        return self.accumulate * self.ranks.size

    @property
    def whole(self) -> bool:
        """No gradients wait for an update, which are those of this process."""
        return self.ranks.size == 1 or not self.progress.gathered

    def _write(self, path: Path) -> None:
        """A checkpoint which any number of ranks may go on from; where state is shared out, all
        have to call.

        Raises:
            UsageError: it cannot be written, or gradients wait for an update.
        """
        if not self.whole:
            raise UsageError(
                f"gradients of {self.progress.gathered} batches wait for an update",
                why="each process has its own, and a checkpoint would hold those of one",
                hint="save after an update; update() makes one of what there is",
            )
        if self._shares is None:
            if self.ranks.first:
                super()._write(path)
            return
        held, rank = self._held.arrays, self.ranks.rank
        own = {n: held[n] for n, owner in self._shares.owner.items() if owner == rank}
        rows = self.ranks.gathered({n: a for n, a in own.items() if n not in self._shares.shared})
        if self.ranks.first:
            before = set(held)
            for row in rows:
                held.update((n, a) for n, a in row.items() if n not in before)
            try:
                super()._write(path)
            finally:
                for name in set(held) - before:
                    del held[name]

    def sizes(self) -> dict[str, int]:
        """Bytes that this rank keeps: of parameters, of sums of gradients, of other state, and its
        process's largest resident set so far."""
        parameters = [v.input for v in self.training.parameters]
        return sizes_of(self._held.arrays, parameters, self._sums)

    def _facts(self) -> dict[str, str]:
        text = self.tuning.to_text() if self.tuning else ""
        return {EXCHANGE: text} if text else {}

    def _take(self, facts: Mapping[str, str]) -> None:
        if self.tuning and EXCHANGE in facts:
            self.tuning.take(facts[EXCHANGE])

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint."""
        super().resume(Path(path))
        if not self.whole:
            raise UsageError(
                f"{path} holds gradients that wait for an update",
                why="they are those of one process",
                hint="go on without --data-parallel until the next update",
            )
        self._draw_apart()

    def _draw_apart(self) -> None:
        if COUNTER in self.state:
            self.state[COUNTER] += self.ranks.rank * APART
            self.push_state()


def sizes_of(
    arrays: Mapping[str, np.ndarray], parameters: Iterable[str], sums: Iterable[str]
) -> dict[str, int]:
    """Bytes of parameters, of sums of gradients and of other state that a process holds, and its
    largest resident set so far."""
    told = {name: array.nbytes for name, array in arrays.items()}
    weights = sum(told.get(name, 0) for name in parameters)
    gradients = sum(told.get(name, 0) for name in sums)
    state = sum(told.values()) - weights - gradients
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"parameters": weights, "gradients": gradients, "state": state, "resident": most}


def kept_by(rows: Sequence[Mapping[str, int]]) -> str:
    """What processes keep, in words; one number where all have the same.

    Args:
        rows: of each process, by :meth:`DataParallel.sizes`.
    """
    parts = []
    for name in rows[0]:
        sizes = [format_bytes(row[name]) for row in rows]
        each = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
        parts.append(f"{name} {each}")
    return "per process: " + "; ".join(parts)


class Shard:
    """One rank's share of the batches, as many as every other's: of n ranks each takes every n-th.

    Together the ranks see in a step what one process sees whose batches are as large as all of
    theirs, in the same order.

    Raises:
        UsageError: fewer batches than ranks.
    """

    def __init__(self, data: Data, ranks: Ranks) -> None:
        self._data, self._ranks = data, ranks
        if len(data) < ranks.size:
            raise UsageError(
                f"{len(data)} batches are too few for {ranks.size} processes",
                hint="fewer processes, more data, or a step with a smaller batch",
            )

    def __len__(self) -> int:
        return len(self._data) // self._ranks.size

    @property
    def order(self) -> str:
        """That of all batches."""
        return self._data.order

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, from its batch ``start``."""
        size, own = self._ranks.size, None
        batches = self._data.epoch(number, start * size)
        for k, batch in enumerate(batches):
            if k >= (len(self) - start) * size:
                return
            last = k % size == size - 1
            if k % size == self._ranks.rank:  # a loader may fill the same arrays again
                own = batch if last else {name: np.array(value) for name, value in batch.items()}
            # Once all have one: an epoch of a loader may be shorter than its first, and a rank with
            # one step more than the others would be a step ahead of them from then on.
            if last and own is not None:
                yield own
