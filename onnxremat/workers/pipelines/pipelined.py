"""Training on several processes, each with a stage of the model: a pipeline of micro-batches.

The step is made for one micro-batch. One step of this trainer is one of the joined batch: every
rank runs the F, B and W of its stages for all micro-batches in the order of a schedule, sends what
others read, adds up gradients in place, and updates its own parameters.

Pipelines side by side take different batches. The sums of a stage travel between its ranks in all
pipelines as soon as its last gradient is made, beside what is still computed; then all make the
same update.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat.errors import ModelError, UsageError
from onnxremat.grad.dropout import COUNTER
from onnxremat.graph.tensor_files import read_tensors, write_tensors
from onnxremat.training.checkpoint import facts_of, progress_in
from onnxremat.training.data import Batch, check_batch
from onnxremat.training.sessions import UNPLANNED
from onnxremat.training.state import Opening, Source, Step
from onnxremat.training.trainer import Trainer
from onnxremat.workers.checksum import checksum
from onnxremat.workers.courier import Transfer
from onnxremat.workers.mpi import Mesh, Ranks
from onnxremat.workers.pieces import Flight, Pieces, Pool, results
from onnxremat.workers.pipeline import BW, B, F, W
from onnxremat.workers.pipelines.staged import Staged, Wanted, gathered, staged
from onnxremat.workers.relay import Relay, raw_of
from onnxremat.workers.spans import Spans
from onnxremat.workers.sums.common_memory import CommonMemory
from onnxremat.workers.sums.data_parallel import APART, sizes_of
from onnxremat.workers.sums.layers import J, Key, label
from onnxremat.workers.sums.overlap import LATEST
from onnxremat.workers.sums.rooms import Rooms
from onnxremat.workers.sums.spread import EVERYWHERE
from onnxremat.workers.sums.tied import Joints


class PipelineParallel(Trainer):
    """A trainer that is one of several, with some stages of the model.

    Args:
        ranks: who the others are; otherwise as :class:`Trainer`.
        wanted: micro-batches, schedule, stages, and how many pipelines there are side by side.

    Attributes:
        mesh: all ranks, those of this pipeline, and those with this one's stages in every pipeline.
        staged: the stages, their schedule and what it takes in simulation.
        seconds: per part of this rank those of its latest runs; whoever reads them may empty it.
        alive: most micro-batches alive at once in each stage of this rank, so far.
        pool: buffers of what parts make for each other.

    Raises:
        UsageError: as many ranks cannot be dealt out to pipelines of equal length.
    """

    alone = False

    def __init__(
        self, graph: Source, weights: Any = None, *, ranks: Ranks, wanted: Wanted, **options: Any
    ) -> None:
        if options.get("accumulate"):
            raise UsageError(
                "--accumulate is not for pipelines", hint="--micro-batches says how many there are"
            )
        self.wanted, self.pool = wanted, Pool()
        self.mesh = Mesh.of(ranks, wanted.pipelines)
        self.staged: Staged
        self.spans = Spans()
        self.seconds: dict[Key, deque[float]] = {}
        self.alive: dict[int, int] = {}
        self._everything: dict[str, np.ndarray] = {}
        self._threads = options.get("threads", 0)
        super().__init__(graph, weights, **options)
        self.accumulate = 1
        self._draw_apart()
        self._split = [n for n in self.training.data if self._has_rows(n)]
        target = self.training.target
        if target and self.types[target][0]:  # a single number is that of every micro-batch
            self._split.append(target)
        rows = self.wanted.micro_batches
        for name in self._split:
            (first, *row), kind = self.types[name]
            self.types[name] = (first * rows, *row), kind

    @property
    def rows(self) -> int:
        """Rows of a step, of all pipelines together."""
        return self.batch_size * self.wanted.pipelines

    def _has_rows(self, name: str) -> bool:
        shape, _ = self.types[name]
        return bool(shape) and shape[0] == self.batch_size

    # ---- what is here ------------------------------------------------------------------

    def _open(self, graph: Source, without: str) -> Step:
        step = gathered(super()._open(graph, without))
        self.mesh.everyone.require_same(checksum(step.model), "the training graph")
        options = replace(UNPLANNED, threads=self._threads)
        self.staged = staged(step, self.mesh, self.wanted, options)
        for courier in filter(None, (self.staged.courier, self.staged.between)):
            weakref.finalize(self, courier.close)
        self._here = self.staged.held(self.mesh.pipeline.rank)
        return step

    def _holds(self, name: str) -> bool:
        """Only what this rank's parts read or update is here."""
        return name in self._here

    def _arrange(self, arrays: dict[str, np.ndarray]) -> None:
        """Sums that travel between pipelines side by side, stage by stage."""
        between = self.staged.between
        if between is None:
            self._rooms = Rooms(arrays, {})
            return
        homes = {name: at for name, at in self.staged.homes.items() if name in arrays}
        between.common = common = CommonMemory(self.mesh.across)
        self._rooms = Rooms(arrays, homes, common.stretch)

    def _start(self, opening: Opening) -> None:
        plan, rank = self.staged, self.mesh.pipeline.rank
        chosen = replace(UNPLANNED, threads=opening.device.threads)
        own = {key: piece for key, piece in plan.pieces.items() if plan.rank_of(key) == rank}
        mine = {k: p for k, p in plan.updates.items() if k == EVERYWHERE or k[1] == rank}
        self._parts = Pieces(own, self._held, chosen, self.pool, opening.step.folder, arena=True)
        self._tail = Pieces(mine, self._held, chosen, self.pool, arena=True)
        self._relay = Relay(plan.pieces, plan.rank_of, self._parts, plan.courier, rank, 1)
        after = self._relay.tags
        self._news = Relay(plan.updates, lambda key: key[1], self._tail, plan.courier, rank, after)
        self._copies = self._news.tags
        self._session = self._update = _Together(self)
        for courier in filter(None, (plan.courier, plan.between)):
            self.spans.watch(courier)
        self._how = lambda: "memory: buffers of one pool between parts"
        self._actions = list(plan.actions(rank))
        self._sent: list[Transfer] = []
        self.staged = plan.opened()

    # ---- steps -------------------------------------------------------------------------

    def step(self, batch: Batch, rate: float | None = None) -> float:
        """One step on a joined batch, which every rank gets; the mean loss of its rows."""
        return float(self.run(batch, rate)[self.training.loss])

    def run(self, batch: Batch, rate: float | None = None) -> dict[str, np.ndarray]:
        """One step; returns the loss."""
        check_batch(self.training, batch, self.types)
        own = self._batches(batch)
        losses, ranks = sum(float(loss) for loss in own), self.mesh.everyone
        mean = ranks.mean(losses) * ranks.size * self._share
        self._update_all(self._rate(rate))
        self.progress.step += 1
        self.progress.updates += 1
        return {self.training.loss: np.array(mean, np.float32)}

    @property
    def joined(self) -> int:
        """Micro-batches of a step, in all pipelines."""
        return self.wanted.micro_batches * self.wanted.pipelines

    @property
    def _share(self) -> float:
        """Of a micro-batch in a step of all pipelines."""
        return 1.0 / self.joined

    def update(self, rate: float | None = None) -> None:
        """Every step updates: nothing is left."""

    def _feeds(self, batch: Batch, k: int) -> dict[str, np.ndarray]:
        found = dict[str, np.ndarray]()
        for name, given in batch.items():
            array = np.asarray(given)
            if name in self._split:
                rows = self.types[name][0][0] // self.wanted.micro_batches
                if len(array) != rows * self.wanted.micro_batches:
                    raise UsageError(
                        f"input '{name}' has {len(array)} rows, the step wants "
                        f"{rows * self.wanted.micro_batches}",
                        why=f"{self.wanted.micro_batches} micro-batches of {rows}",
                    )
                array = array[k * rows : (k + 1) * rows]
            found[name] = array
        return found | self._scale()

    def _batches(self, batch: Batch) -> list[np.ndarray]:
        """F, B and W of this rank for every micro-batch; the losses where they are made here."""
        flights: dict[int, Flight] = {}
        alive: Counter[int] = Counter()
        left = Counter(stage for stage, kind, _ in self._actions if kind in (W, BW))
        losses, loss = dict[int, np.ndarray](), self.training.loss
        kept = [loss] if any(loss in p.makes for p in self._parts.pieces.values()) else []

        def flight(k: int) -> Flight:
            if k not in flights:
                feeds = self._feeds(batch, k)
                flights[k] = self._parts.flight(feeds, kept, self._relay.readers)
            return flights[k]

        def joined(key: Key, k: int) -> None:
            self._one(key, flights[k], k)
            self._relay.send(key, flights[k])

        joints = Joints(lambda key, k: self._relay.ready(key, flights[k]), joined)
        for at, (stage, kind, k) in enumerate(self._actions):
            if kind == F:
                alive[stage] += 1
                self.alive[stage] = max(self.alive.get(stage, 0), alive[stage])
            keys = self._keys(stage, kind)
            for next_stage, next_kind, next_k in self._actions[at : at + 2]:
                for key in self._keys(next_stage, next_kind):
                    self._relay.fetch(key, flight(next_k))
            for key in keys:
                self._one(key, flight(k), k)
            for key in keys:  # what B and W make as one action leaves at its end
                self._relay.send(key, flights[k])
            if kept and k not in losses and loss in flights[k].values:
                losses[k] = results(flights[k], kept)[loss]
            if kind in (W, BW):
                alive[stage] -= 1
                left[stage] -= 1
                if (J, stage) in self._parts.pieces:
                    joints.due((J, stage), k)
                elif not left[stage]:
                    self._leave(stage)
            joints.go_on()
        joints.finish()
        for stage in sorted(left):  # those that were joined: in the same order in all pipelines
            if (J, stage) in self._parts.pieces:
                self._leave(stage)
        self._relay.clear(True)
        return list(losses.values())

    def _leave(self, stage: int) -> None:
        """Sums of a stage are complete: they travel to the other pipelines."""
        arrays = self._rooms.slices([stage])
        if arrays and self.staged.between:
            name = f"sums of stage {stage}"
            self._sent.append(self.staged.between.add_up(arrays, name))

    def _arrived(self) -> None:
        """All sums are those of all pipelines; statistics are means over them."""
        between = self.staged.between
        if between is None:
            return
        while self._sent:
            transfer = self._sent.pop(0)
            with self.spans.during("wait", transfer.name):
                between.wait(transfer)
        moved = [v.input for v in self.training.states if v.initial == "model" and v.output]
        held = self._held.arrays
        self.mesh.across.average([held[name] for name in moved if name in held])

    def _keys(self, stage: int, kind: int) -> list[Key]:
        kinds = (B, W) if kind == BW else (kind,)
        return [(each, stage) for each in kinds if (each, stage) in self._parts.pieces]

    def _one(self, key: Key, flight: Flight, k: int) -> None:
        with self.spans.during("wait", f"for {label(key)} of {k}"):
            self._relay.wait(key, flight)
        begin = time.perf_counter()
        self._parts.run(key, flight)
        end = time.perf_counter()
        self.seconds.setdefault(key, deque(maxlen=LATEST)).append(end - begin)
        self.spans.add("compute", f"{label(key)} of {k}", begin, end)

    def _update_all(self, rate: float) -> None:
        """Parameters and state of this rank, and copies of others' that it reads."""
        self._arrived()
        feeds = self._of_update(rate, self._share)
        flight = self._tail.flight(feeds, (), self._news.readers)
        for key in self._tail.pieces:
            self._news.wait(key, flight)
            with self.spans.during("compute", "update"):
                self._tail.run(key, flight)
            self._news.send(key, flight)
        self._news.clear(True)
        for name in self._sums:
            if name in self._held.arrays:
                self._held.arrays[name].fill(0)
        rank, courier = self.mesh.pipeline.rank, self.staged.courier
        going = []
        for tag, (name, (owner, readers)) in enumerate(self.staged.copies.items(), self._copies):
            if rank == owner:
                raw = raw_of(self._held.arrays[name])
                going += [courier.send(raw, reader, tag, name) for reader in readers]
            elif rank in readers:
                going.append(courier.receive(raw_of(self._held.arrays[name]), owner, tag, name))
        for transfer in going:
            courier.wait(transfer)

    # ---- state -------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, np.ndarray]:
        """What this rank holds; on the first, after :meth:`collect`, everything as it then was."""
        return self._everything or self._held.arrays

    def sizes(self) -> dict[str, int]:
        """Bytes that this rank keeps: of parameters, of sums of gradients, of other state, of
        values between parts at most, and its process's largest resident set so far."""
        parameters = [v.input for v in self.training.parameters]
        found = sizes_of(self._held.arrays, parameters, self._sums)
        resident = found.pop("resident")
        return {**found, "values": self.pool.peak, "resident": resident}

    def collect(self) -> None:
        """Bring the state of all ranks to the first, where it can be exported; all have to call."""
        if not self.mesh.across.first:  # the first pipeline has all of it
            return
        owners, ranks = self.staged.owners, self.mesh.pipeline
        own = {name: a for name, a in self._held.arrays.items() if owners.get(name) == ranks.rank}
        for row in ranks.gathered(own):
            self._everything.update(row)

    def _write(self, path: Path) -> None:
        """As one process does; all have to call."""
        self.collect()
        if self.mesh.everyone.first:
            facts = facts_of(self.training, self.progress, self.rows, self.accumulate)
            write_tensors(path, self._everything, facts)
        self._everything = {}

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint, of one process or any number.

        Raises:
            ModelError: unreadable, or of another model.
        """
        tensors, facts = read_tensors(Path(path))
        sums = set(self._sums)
        odd = sorted((set(tensors) ^ set(self.staged.owners)) - sums)
        for name, array in self._held.arrays.items():
            given = tensors.get(name)
            if given is not None and (given.shape, given.dtype) != (array.shape, array.dtype):
                odd.append(name)
        if odd or sums & set(tensors):
            raise ModelError(
                f"{path} is a checkpoint of another training graph, or waits for an update",
                why=f"differing tensors: {', '.join((odd or sorted(sums))[:5])}",
                hint="resume with the step it was made with, or start anew with another file",
            )
        self.progress = progress_in(Path(path), facts, self.training, self.rows, self.accumulate)
        for name, array in self._held.arrays.items():
            if name not in sums:
                np.copyto(array, tensors[name])
        self._draw_apart()

    def _draw_apart(self) -> None:
        """Masks of dropout differ between pipelines."""
        if COUNTER in self._held.arrays:
            self._held.arrays[COUNTER] += self.mesh.across.rank * APART


class _Together:
    """The sessions of all parts, as a trainer ends them."""

    def __init__(self, trainer: PipelineParallel) -> None:
        self._trainer = trainer

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A pipeline is run micro-batch by micro-batch."""
        return self._trainer.run(feeds)

    def abandon(self) -> None:
        """Stop what is on."""
        self._trainer._parts.abandon()
        self._trainer._tail.abandon()
