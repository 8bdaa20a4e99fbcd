"""Runs a partitioned model: one session per partition, values handed on without numpy.

Each device is a stream of partitions in plan order, each link that really copies a stream of
copies; streams are threads, and wait for each other only where the plan makes them
(onnxruntime runs without holding Python's lock). A plan in which nothing can run at the same time
runs in the calling thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxremat.device.machine import PROVIDERS, Device, Machine
from onnxremat.errors import ModelError, StoppedError
from onnxremat.execute.common_slab import Order, SharedSlab
from onnxremat.execute.given_values import GivenValues, memory
from onnxremat.execute.held_values import Held
from onnxremat.execute.pools import ready_made
from onnxremat.execute.stream_threads import StreamThread
from onnxremat.execute.streams import overlaps, streams
from onnxremat.execute.traffic import traffic
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.wire import read_light
from onnxremat.memory.native import missing
from onnxremat.memory.session import PlannedSession, SlabSession
from onnxremat.ort.denormals import denormals_as_zero
from onnxremat.ort.profile import SIZES_KEY, Profile, ended
from onnxremat.ort.providers import CPU, assigned, device_options, limited, open_on, require
from onnxremat.ort.session import TUNED, first_line, model_source
from onnxremat.ort.values import (
    SHARED,
    Copies,
    Stage,
    as_array,
    made_array,
    moved,
    share_arena,
    share_gpu_arena,
    shared_empty,
    view,
)
from onnxremat.rewrite.partition import Copy, Key, Partition, Partitioned, part_graph
from onnxremat.rewrite.pins import PREFIX as PIN
from onnxremat.session.held import open_held, open_light


@dataclass(frozen=True)
class Opening:
    """What sessions are made of.

    Attributes:
        folder: where external weights are.
        models: the model of each partition, instead of those made from its graph.
        file: that has the big weights of the partitions inside, in ``folder``; None for models that
            hold theirs themselves.
        only: actions to open sessions for, all when None; the others are carried out elsewhere.
        record: folder for profiles; runs are then one action after the other, each session
            with a pool of its own, so that its bytes can be told apart.
    """

    folder: Path | None = None
    models: Sequence[onnx.ModelProto | Path] | None = None
    file: Path | None = None
    only: Sequence[int] | None = None
    record: Path | None = None


@dataclass(frozen=True)
class Kept:
    """What keeps runs within budgets.

    Attributes:
        waits: further (before, after) pairs of actions.
        limits: bytes per device; CUDA's pool is made no larger. Sessions share it, unless an
            executor before this one in the process had another limit: then each has its own.
    """

    waits: Sequence[tuple[int, int]] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


class Executor:
    """A partitioned model, ready to run again and again.

    Args:
        parts: what to run.
        machine: what its devices are.
        opening: what sessions are made of.
        kept: what keeps runs within budgets.
        state: array per input that the model updates in place; read and overwritten.
        overlap: run devices side by side; when it pays, by default (None).

    Raises:
        MissingComponentError: a device's provider is not here.
        UsageError: a device or link is missing, or state of another shape.
        ModelError: onnxruntime refuses a partition.
    """

    def __init__(
        self,
        parts: Partitioned,
        machine: Machine,
        opening: Opening | None = None,
        kept: Kept | None = None,
        *,
        state: Mapping[str, np.ndarray] | None = None,
        overlap: bool | None = None,
    ) -> None:
        opening, kept = opening or Opening(), kept or Kept()
        self.parts, self.machine, self.copies = parts, machine, Copies()
        self._limits, self._opening, self._record = dict(kept.limits), opening, opening.record
        self._check()
        self._given = GivenValues(parts, machine, state or {}, self.copies)
        self.traffic = self._traffic = traffic(parts, machine, self._given.updated)
        # Inputs that are copied to another memory for every run.
        self._sent = [
            (name, index, device)
            for name, row in self.traffic.readers.items()
            for index, device in row
            if self._given.memory(name) != memory(device)
            or (device.opaque and name not in self._given.pool)
        ]
        self._held = Held({}, {}, {})
        self._runs, self._stopped = 0, False
        self._one_run = threading.Lock()
        self.stages = self._open()
        self._apart = self._several()
        for name in state or {}:
            self._show(name)
        side_by_side = overlaps(parts, machine) if overlap is None else overlap
        side_by_side &= opening.record is None
        self._streams = streams(parts, machine, kept.waits) if side_by_side else []
        self._threads = [StreamThread(stream) for stream in self._streams[1:]]
        self._shared = self._to_share(kept.waits)
        self._settled = self._shared.settled if self._shared else {}
        self._end = weakref.finalize(self, _end_all, self._threads)

    # ---- making ----------------------------------------------------------------------------

    def _check(self) -> None:
        """Every device and link is there."""
        for name in dict.fromkeys(part.device for part in self.parts.partitions):
            require(self.machine.device(name))
        for copy in self.parts.copies:
            self.machine.link(copy.source, copy.target)

    def _open(self) -> dict[int, Stage]:
        stages, models, only = {}, self._opening.models, self._opening.only
        for index in range(len(self.parts.actions)) if only is None else only:
            action = self.parts.actions[index]
            if not isinstance(action, Partition):
                continue
            device = self.machine.device(action.device)
            model = to_model(part_graph(action, device)) if models is None else models[action.index]
            session = self._session(index, device, model)
            stages[index] = Stage(
                session, device, action.graph.outputs, self._fixed(index, action, device),
                self._makers(action),
            )  # fmt: skip
        return stages

    def _session(self, index: int, device: Device, model: onnx.ModelProto | Path) -> Any:
        """A session on a device. On the processor it holds what is live, where that can be had:
        its blocks have planned addresses."""
        folder = self._opening.folder
        if device.provider == CPU and self._record is None and not missing():
            made = device_options(device, TUNED)
            file = model if isinstance(model, Path) else self._opening.file
            if file is None:
                return open_held(model_source(model, made, folder), made, TUNED, kept=False)
            if model is file:
                return open_light(file, read_light(file, PIN).content, made, TUNED)
            return open_light(file, model_source(model, made, None), made, TUNED)
        entries = self._entries(index, device)
        if SHARED not in entries:
            device = limited(device, self._limits.get(device.name, 0))
        prefix = str(self._record / f"profile{index}") if self._record else ""
        return open_on(device, model, TUNED, folder, entries=entries, prefix=prefix)

    def _fixed(self, index: int, part: Partition, device: Device) -> dict[str, Any]:
        """State that a partition writes new values into."""
        updated = self._given.updated
        return {
            new: self._given[updated[new]]
            for new, _, _ in self.traffic.updates[index]
            if _in_place(part.graph, updated[new], new, device)
        }

    def _makers(self, part: Partition) -> dict[str, Callable[[], Any]]:
        """How to make the results that a plugin provider will read."""
        tensors, pool = self.parts.graph.tensors, self._given.pool
        return {
            name: partial(shared_empty, pool[name], tensors[name].dtype, tensors[name].shape or ())
            for name in ready_made(part, pool, self._given.updated)
        }

    def _entries(self, index: int, device: Device) -> dict[str, str]:
        if self._record:
            return {SIZES_KEY: str(self._record / f"sizes{index}.csv")}
        shared = share_arena()
        if device.provider == PROVIDERS["cuda"]:
            shared &= share_gpu_arena(device.index, self._limits.get(device.name, 0))
        return {SHARED: "1"} if shared else {}

    def _several(self) -> set[int]:
        """Partitions whose session must hold nothing between runs, as others on the same device
        run by then, and it has a limit."""
        on = Counter(part.device for part in self.parts.partitions)
        return {
            index
            for index, part in enumerate(self.parts.actions)
            if isinstance(part, Partition)
            and index in self.stages
            and self._limits.get(part.device)
            and on[part.device] > 1
            and isinstance(self.stages[index].session, PlannedSession)
        }

    def _to_share(self, waits: Sequence[tuple[int, int]]) -> SharedSlab | None:
        """One slab for all sessions of the processor; None where only one would be in it."""
        sessions = {index: stage.session for index, stage in self.stages.items()}
        slabs = {i: session for i, session in sessions.items() if isinstance(session, SlabSession)}
        if len(slabs) < 2 or self._opening.only is not None:
            return None
        order = Order(self.parts, self.machine, bool(self._streams), waits)
        limited = any(self._limits.values())
        return SharedSlab(self.parts, self.traffic, order, slabs, limited=limited)

    def profiles(self, warmup: int = 0) -> dict[int, Profile]:
        """What each partition did, by action; for executors that record. Ends the recording."""
        assert self._record is not None
        return {
            index: ended(
                stage.session, self._record / f"sizes{index}.csv", self._runs - warmup, warmup
            )
            for index, stage in self.stages.items()
        }

    def taken(self, index: int) -> dict[str, str]:
        """Node to the provider that took it, of the partition that is action ``index``."""
        return assigned(self.stages[index].session)

    # ---- running ---------------------------------------------------------------------------

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run; one that another thread asks for waits for its end. An array that was given
        before is not bound again: write into it in place.

        Returns:
            every graph output but updated state, as arrays of their own.

        Raises:
            UsageError: an input is missing, of another shape or type, or not the model's.
            ModelError: a session fails; state may have been updated in part.
            StoppedError: it was abandoned, or Ctrl-C ended an earlier run in the middle.
        """
        with self._one_run:
            return self._run(feeds)

    def _run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._check_going()
        for name in self._given.feed(feeds):
            self._show(name)
        self._runs += 1
        if self._shared:
            self._shared.begin()
            self._settle()
        self._held = Held({}, dict(self.traffic.uses), {})
        for name, index, device in self._sent:
            value = self._given[name]
            if self._given.memory(name) != memory(device):
                value = moved(value, device, self.copies)
            self.stages[index].bind(name, value)
        try:
            if self._streams:
                self._side_by_side()
            else:
                with denormals_as_zero():
                    for index in range(len(self.parts.actions)):
                        self.act(index)
        except BaseException:
            self._held.drop()
            raise
        if self._shared:
            self._shared.end()
        return self.results(self._held)

    def _settle(self) -> None:
        """Values that have one place in all runs are bound there, and others handed on."""
        assert self._shared
        values = self._shared.settled
        if values is self._settled:
            return
        self._settled, self.traffic = values, self._traffic.without(values)
        for index, stage in self.stages.items():
            reads, writes = self.parts.uses[index]
            stage.write_into({key[0]: values[key] for key in writes if key in values})
            for key in reads:
                if key in values:
                    stage.bind(key[0], values[key])

    def act(self, index: int) -> None:
        """Carry out one action of the run that is on."""
        self.carry(index, self._held)

    def carry(self, index: int, held: Held) -> None:
        """Carry out one action on the values of a run.

        Raises:
            ModelError: a session fails.
            StoppedError: :meth:`abandon` was called.
        """
        self._check_going()
        action = self.parts.actions[index]
        if isinstance(action, Copy):
            self._copy(index, action, held)
        else:
            fresh = [(name, held.store[key]) for name, key in self.traffic.takes[index]]
            fresh += held.given.pop(index, ())
            try:
                values = self.stages[index].run(fresh)
            except Exception as error:  # onnxruntime raises a dozen unrelated types
                raise ModelError(
                    f"partition {action.name} does not run", why=first_line(error)
                ) from error
            finally:
                fresh.clear()
            self._keep(index, values, held)
            if self._shared:
                self._shared.note(index, self.stages[index].names, values)
            values.clear()
            if index in self._apart and not (self._shared and self._shared.taken):
                self.stages[index].session.release()
        held.used(*self.traffic.hands[index])

    def _keep(self, index: int, values: list[Any], held: Held) -> None:
        """Take over what a partition made."""
        made = dict(zip(self.stages[index].names, values, strict=True))
        for key in self.traffic.makes[index]:
            held.store[key] = made[key[0]]
        for key in self.traffic.updates[index]:
            state = self._given[self._given.updated[key[0]]]
            if key[0] in made:  # it could not be written in place
                self.copies.between += 1
                np.copyto(view(state), view(made[key[0]]))
            held.store[key] = state

    def _copy(self, index: int, action: Copy, held: Held) -> None:
        reads, writes = self.traffic.hands[index]
        if not writes:  # it lies where both devices have it
            return
        (target,) = writes
        if reads:
            value = held.store[reads[0]]
        elif action.value in held.moving:
            value = held.moving[action.value]
        else:
            value = self._given[action.value]
        if not self.traffic.shared[index]:
            value = moved(value, self.machine.device(action.target), self.copies)
        held.store[target] = value

    def begun(self, feeds: Mapping[str, np.ndarray]) -> Held:
        """A run on copies of its inputs, which others may go on beside; for :meth:`carry`. Values
        of several runs have no place in common.

        Raises:
            UsageError: an input is missing, of another shape or type, or not the model's.
        """
        if self._shared and self._settled:
            self._shared.leave()
            self._settle()
        values = self._given.copied(feeds)
        there = {("host", name): value for name, value in values.items()}
        given: dict[int, list[tuple[str, Any]]] = {}
        for name, row in self.traffic.readers.items():
            for index, device in row:
                at = (memory(device), name)
                if at not in there:
                    there[at] = moved(values[name], device, self.copies)
                given.setdefault(index, []).append((name, there[at]))
        return Held({}, dict(self.traffic.uses), given, values if self._moves_inputs else {})

    def results(self, held: Held) -> dict[str, np.ndarray]:
        """Every graph output but updated state, as arrays of their own; the run is over."""
        return {
            name: (made_array if key in self._made else as_array)(held.store.pop(key), self.copies)
            for name, key in self.traffic.final.items()
            if name not in self._given.updated
        }

    @cached_property
    def _made(self) -> set[Key]:
        """Values that sessions make: others lie over an array."""
        rows = zip(self.parts.actions, self.traffic.makes, strict=True)
        return {key for action, row in rows if isinstance(action, Partition) for key in row}

    @cached_property
    def _moves_inputs(self) -> bool:
        """The plan copies inputs of the model from device to device."""
        return any(
            isinstance(action, Copy) and not reads
            for action, (reads, _) in zip(self.parts.actions, self.parts.uses, strict=True)
        )

    def _show(self, name: str) -> None:
        """Bind a graph input wherever it is read where it lies."""
        for index, device in self.traffic.readers.get(name, ()):
            if (name, index, device) not in self._sent:
                self.stages[index].bind(name, self._given[name])

    def pull_state(self) -> None:
        """Bring state that is kept elsewhere (in a GPU's memory, or shared with a plugin provider)
        back into the caller's arrays; what the processor updates is in them already."""
        with self._one_run:
            self._given.pull_state()

    def push_state(self, names: Iterable[str]) -> None:
        """Bring the caller's arrays of some state to where it is kept."""
        with self._one_run:
            self._given.push_state(names)

    def abandon(self) -> None:
        """Stop the run that is on, before its next action, and every later one; from any thread."""
        self._stopped = True

    def _check_going(self) -> None:
        if self._stopped:
            raise StoppedError(
                "interrupted in the middle of a run", hint="load it again to go on with it"
            )

    # ---- streams ---------------------------------------------------------------------------

    def _side_by_side(self) -> None:
        for thread in self._threads:
            thread.begin(self.act)
        try:
            with denormals_as_zero():
                error = self._streams[0].run(self.act)
            errors = [error, *(thread.error() for thread in self._threads)]
        except BaseException:  # Ctrl-C in the caller's program: streams are no longer in step
            self.abandon()
            for stream in self._streams:
                stream.release()
            self.close()
            for thread in self._threads:
                thread.join()  # what it runs reads the caller's arrays
            raise
        for found in errors:
            if found is not None:
                self._held.store.clear()
                raise found

    def close(self) -> None:
        """End the threads; a later run is one action after the other."""
        self._end()
        self._streams = []

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _end_all(threads: Sequence[StreamThread]) -> None:
    for thread in threads:
        thread.end()


def _in_place(graph: Graph, old: str, new: str, device: Device) -> bool:
    """Whether a partition may write a new value over the old one. A provider that compiles it may
    run the update before another reader of the old value."""
    others = [op for op in graph.ops if old in op.reads and new not in op.writes]
    return not (device.opaque and others)
