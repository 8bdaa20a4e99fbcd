"""Runs a partitioned model: one session per partition, values handed on without numpy.

Each device is a stream of partitions in plan order, each link that really copies a stream of
copies; streams are threads, and wait for each other only where the plan makes them
(onnxruntime runs without holding Python's lock). A plan in which nothing can run at the same time
runs in the calling thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import onnx

from onnxremat.device.machine import PROVIDERS, Device, Machine
from onnxremat.errors import ModelError, UsageError
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.binding import wrap
from onnxremat.ort.denormals import denormals_as_zero
from onnxremat.ort.profile import SIZES_KEY, Profile, ended
from onnxremat.ort.providers import assigned, open_on, require
from onnxremat.ort.session import TUNED, first_line
from onnxremat.ort.values import (
    Copies,
    Stage,
    as_array,
    moved,
    share_arena,
    share_gpu_arena,
    shared_empty,
    shared_memory,
    view,
)
from onnxremat.rewrite.partition import Copy, Key, Partition, Partitioned, part_graph
from onnxremat.run.streams import Stream, overlaps, streams


def pooled(parts: Partitioned, machine: Machine) -> dict[str, Device]:
    """Values that a plugin provider reads or updates, with its device: they are made in the memory
    that it shares with the processor, else every binding would copy them."""
    olds = {new: old for old, new in parts.pairs}
    found = {}
    for part in parts.partitions:
        device = machine.device(part.device)
        if device.opaque and shared_memory(device) is not None:
            updated = [olds[name] for name in part.graph.outputs if name in olds]
            found.update(dict.fromkeys((*part.graph.inputs, *updated), device))
    return found


def ready_made(part: Partition, pool: Collection[str], updated: Collection[str]) -> set[str]:
    """Results of a partition that have their buffer before it starts."""
    return {name for name in part.graph.outputs if name in pool and name not in updated}


class Executor:
    """A partitioned model, ready to run again and again.

    Args:
        parts: what to run.
        machine: what its devices are.
        folder: where external weights are.
        state: array per input that the model updates in place; read and overwritten.
        overlap: run devices side by side; when it pays, by default (None).
        waits: further (before, after) pairs of actions, that keep memory within budgets.
        limits: bytes per device; CUDA's pool is made no larger.
        models: the model of each partition, instead of those made from ``parts``.
        record: folder for profiles; runs are then one action after the other, each session
            with a pool of its own, so that its bytes can be told apart.

    Raises:
        MissingComponentError: a device's provider is not here.
        UsageError: a device or link is missing, or state of another shape.
        ModelError: onnxruntime refuses a partition.
    """

    def __init__(
        self,
        parts: Partitioned,
        machine: Machine,
        *,
        folder: Path | None = None,
        state: Mapping[str, np.ndarray] | None = None,
        overlap: bool | None = None,
        waits: Sequence[tuple[int, int]] = (),
        limits: Mapping[str, int] | None = None,
        models: Sequence[onnx.ModelProto | Path] | None = None,
        record: Path | None = None,
    ) -> None:
        self.parts, self.machine, self.copies = parts, machine, Copies()
        for device in dict.fromkeys(part.device for part in parts.partitions):
            require(machine.device(device))
            if machine.device(device).provider == PROVIDERS["cuda"]:
                share_gpu_arena(machine.device(device).index, (limits or {}).get(device, 0))
        for copy in parts.copies:
            machine.link(copy.source, copy.target)
        self._inputs = {name: parts.graph.tensors[name] for name in parts.graph.inputs}
        self._updated = {new: old for old, new in parts.pairs if old in (state or {})}
        self._given: dict[str, np.ndarray] = {}  # the caller's arrays
        self._values: dict[str, Any] = {}  # and where they are: shared with host sessions
        self._state = dict(state or {})
        self._store: dict[Key, Any] = {}
        self._left: dict[Key, int] = {}
        self._lock = threading.Lock()
        self._home = self._find_homes()
        self._pooled = pooled(parts, machine)
        for name, array in self._state.items():
            self._take(name, array)
        self._look_up()
        self._record, self._runs = record, 0
        self.stages = self._open(folder, models)
        for name in self._state:
            self._show(name)
        side_by_side = overlaps(parts, machine) if overlap is None else overlap
        side_by_side &= record is None
        self._streams = streams(parts, machine, waits) if side_by_side else []
        self._threads = [_Thread(self, stream) for stream in self._streams[1:]]

    # ---- making ----------------------------------------------------------------------------

    def _find_homes(self) -> dict[str, Device]:
        """State input to the device that updates it, where that has a memory of its own."""
        homes = {}
        for part in self.parts.partitions:
            device = self.machine.device(part.device)
            for new in part.graph.outputs:
                if new in self._updated and not device.in_host_memory:
                    homes[self._updated[new]] = device
        return homes

    def _look_up(self) -> None:
        """What each action binds and makes, and how often each value is used."""
        parts, machine = self.parts, self.machine
        self._binds: list[list[tuple[str, Key]]] = []
        self._makes: list[list[Key]] = []
        self._updates: list[list[Key]] = []
        self._shared: list[bool] = []
        self._uses: dict[Key, int] = {}
        self._final: dict[str, Key] = {}
        self._readers: dict[str, list[tuple[int, Device]]] = {}
        final = set(parts.followed.final.items())
        for index, (action, (reads, writes)) in enumerate(
            zip(parts.actions, parts.uses, strict=True)
        ):
            self._binds.append([(key[0], key) for key in reads])
            self._makes.append([key for key in writes if key[0] not in self._updated])
            self._updates.append([key for key in writes if key[0] in self._updated])
            for key in reads:
                self._uses[key] = self._uses.get(key, 0) + 1
            for key in writes:
                self._uses.setdefault(key, 0)
                if key[:2] in final:
                    self._final[key[0]] = key
            if isinstance(action, Copy):
                self._shared.append(machine.link(action.source, action.target).shared)
                continue
            self._shared.append(False)
            came = {key[0] for key in reads}
            for name in action.graph.inputs:
                if name in self._inputs and name not in came:
                    at = (index, machine.device(action.device))
                    self._readers.setdefault(name, []).append(at)
        for key in self._final.values():
            self._uses[key] += 1
        # Inputs that are copied to another memory for every run.
        self._sent = [
            (name, index, device)
            for name, row in self._readers.items()
            for index, device in row
            if self._memory(name) != _memory(device) or (device.opaque and name not in self._pooled)
        ]

    def _memory(self, name: str) -> str:
        return _memory(self._home[name]) if name in self._home else "host"

    def _open(
        self, folder: Path | None, models: Sequence[onnx.ModelProto | Path] | None
    ) -> dict[int, Stage]:
        stages = {}
        for index, action in enumerate(self.parts.actions):
            if not isinstance(action, Partition):
                continue
            device = self.machine.device(action.device)
            model = to_model(part_graph(action, device)) if models is None else models[action.index]
            session = open_on(
                device, model, TUNED, folder,
                entries=self._entries(index),
                prefix=str(self._record / f"profile{index}") if self._record else "",
            )  # fmt: skip
            fixed = {
                new: self._values[self._updated[new]]
                for new, _, _ in self._updates[index]
                if _in_place(action.graph, self._updated[new], new, device)
            }
            stages[index] = Stage(
                session, device, action.graph.outputs, fixed, self._makers(action)
            )
        return stages

    def _makers(self, part: Partition) -> dict[str, Callable[[], Any]]:
        """How to make the results that a plugin provider will read."""
        tensors = self.parts.graph.tensors
        return {
            name: partial(
                shared_empty, self._pooled[name], tensors[name].dtype, tensors[name].shape or ()
            )
            for name in ready_made(part, self._pooled, self._updated)
        }

    def _entries(self, index: int) -> dict[str, str]:
        if self._record:
            return {SIZES_KEY: str(self._record / f"sizes{index}.csv")}
        return {"session.use_env_allocators": "1"} if share_arena() else {}

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
        """One run. An array that was given before is not bound again: write into it in place.

        Returns:
            every graph output but updated state, as arrays of their own.

        Raises:
            UsageError: an input is missing, or of another shape or type.
            ModelError: a session fails; state may have been updated in part.
        """
        self._feed(feeds)
        self._runs += 1
        self._left = dict(self._uses)
        self._store.clear()
        for name, index, device in self._sent:
            value = self._values[name]
            if self._memory(name) != _memory(device):
                value = moved(value, device, self.copies)
            self.stages[index].bind(name, value)
        if self._streams:
            self._side_by_side()
        else:
            with denormals_as_zero():
                for index in range(len(self.parts.actions)):
                    self.act(index)
        return {
            name: as_array(self._store.pop(key), self.copies)
            for name, key in self._final.items()
            if name not in self._updated
        }

    def act(self, index: int) -> None:
        """Carry out one action."""
        action = self.parts.actions[index]
        if isinstance(action, Copy):
            self._copy(index, action)
        else:
            fresh = [(name, self._store[key]) for name, key in self._binds[index]]
            try:
                values = self.stages[index].run(fresh)
            except Exception as error:  # onnxruntime raises a dozen unrelated types
                raise ModelError(
                    f"partition {action.name} does not run", why=first_line(error)
                ) from error
            fresh.clear()
            self._keep(index, values)
            values.clear()
        reads, writes = self.parts.uses[index]
        with self._lock:
            for key in reads:
                self._left[key] -= 1
            for key in (*reads, *writes):
                if not self._left[key]:
                    self._store.pop(key, None)

    def _keep(self, index: int, values: list[Any]) -> None:
        """Take over what a partition made."""
        made = dict(zip(self.stages[index].names, values, strict=True))
        for key in self._makes[index]:
            self._store[key] = made[key[0]]
        for key in self._updates[index]:
            state = self._values[self._updated[key[0]]]
            if key[0] in made:  # it could not be written in place
                self.copies.between += 1
                np.copyto(view(state), view(made[key[0]]))
            self._store[key] = state

    def _copy(self, index: int, action: Copy) -> None:
        (target,) = self.parts.uses[index][1]
        reads = self.parts.uses[index][0]
        value = self._store[reads[0]] if reads else self._values[action.value]
        if not self._shared[index]:
            value = moved(value, self.machine.device(action.target), self.copies)
        self._store[target] = value

    def _feed(self, feeds: Mapping[str, np.ndarray]) -> None:
        for name in self._inputs:
            if name in self._state:
                continue
            if name not in feeds:
                if name in self._given:
                    continue
                raise UsageError(
                    f"no value for input '{name}'", why=f"given are {', '.join(sorted(feeds))}"
                )
            if self._given.get(name) is not feeds[name]:
                self._take(name, feeds[name])
                self._show(name)
            elif name in self._pooled:  # it may have been written in place
                self._fill(name)

    def _take(self, name: str, given: np.ndarray) -> None:
        """Make a value over the caller's array."""
        tensor = self._inputs.get(name)
        if tensor is None:
            raise UsageError(f"the model has no input '{name}'")
        array = np.asarray(given)
        wanted = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
        if array.shape != tensor.shape or array.dtype != wanted:
            raise UsageError(
                f"input '{name}' is {array.dtype}{list(array.shape)}, the model wants "
                f"{wanted}{list(tensor.shape or ())}"
            )
        if name in self._state and not (array.flags.c_contiguous and array.flags.writeable):
            raise UsageError(f"state '{name}' has to be a contiguous array that can be written")
        array = np.asarray(array, order="C")
        self._given[name] = array  # another object when it was converted: then bound every run
        if name in self._pooled:
            if name not in self._values:
                shape = tensor.shape or ()
                self._values[name] = shared_empty(self._pooled[name], tensor.dtype, shape)
            self._fill(name)
            return
        self._values[name] = wrap(array)
        if name in self._home:
            self._values[name] = moved(self._values[name], self._home[name], self.copies)

    def _fill(self, name: str) -> None:
        """Bring the caller's array to where a plugin provider reads it."""
        self.copies.between += 1
        np.copyto(view(self._values[name]), self._given[name])

    def _show(self, name: str) -> None:
        """Bind a graph input wherever it is read where it lies."""
        for index, device in self._readers.get(name, ()):
            if (name, index, device) not in self._sent:
                self.stages[index].bind(name, self._values[name])

    def pull_state(self) -> None:
        """Bring state that is kept elsewhere (in a GPU's memory, or shared with a plugin provider)
        back into the caller's arrays; what the processor updates is in them already."""
        for name in self._state:
            if name in self._home or name in self._pooled:
                np.copyto(self._state[name], as_array(self._values[name], self.copies))

    # ---- streams ---------------------------------------------------------------------------

    def _side_by_side(self) -> None:
        for thread in self._threads:
            thread.go.put(True)
        with denormals_as_zero():
            error = self._streams[0].run(self.act)
        errors = [error, *(thread.done.get() for thread in self._threads)]
        for found in errors:
            if found is not None:
                self._store.clear()
                raise found

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.go.put(False)
        self._threads = []

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _in_place(graph: Graph, old: str, new: str, device: Device) -> bool:
    """Whether a partition may write a new value over the old one. A provider that compiles it may
    run the update before another reader of the old value."""
    others = [op for op in graph.ops if old in op.reads and new not in op.writes]
    return not (device.opaque and others)


def _memory(device: Device) -> str:
    return "host" if device.in_host_memory else device.name


class _Thread(threading.Thread):
    """Runs one stream whenever told to."""

    def __init__(self, executor: Executor, stream: Stream) -> None:
        super().__init__(daemon=True, name=f"onnxremat-{stream.name}")
        self.go: SimpleQueue[bool] = SimpleQueue()
        self.done: SimpleQueue[Exception | None] = SimpleQueue()
        self._act, self._stream = executor.act, stream
        self.start()

    def run(self) -> None:
        with denormals_as_zero():
            while self.go.get():
                self.done.put(self._stream.run(self._act))
