"""Parts of one graph as sessions of their own, and what goes from one to the other.

Parameters and state lie in arrays that sessions read and update in place. What one part makes for
others lies in buffers that a *flight* holds: the values of one batch between its first part and its
last. A buffer goes back to the pool when nobody reads it any more. Several flights may be on at
once, each with another batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxremat.grad.description import StepSignature
from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.subgraph import subgraph
from onnxremat.graph.traits import is_alias
from onnxremat.memory.native import opening
from onnxremat.ort.binding import BoundState, check_input, run_bound, run_options, wrap
from onnxremat.ort.session import Options, model_source, open_session, session_options
from onnxremat.ort.values import share_arena
from onnxremat.session.held import open_held
from onnxremat.workers.courier import Transfer
from onnxremat.workers.turns import last_first

ALIGNED = 64  # bytes that a buffer starts at a multiple of


class Value:
    """A buffer, the array in it and the same for onnxruntime."""

    def __init__(self, raw: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.raw = raw
        self.array = raw.view(dtype).reshape(shape)
        self.ort = wrap(self.array)


class Pool:
    """Buffers by size.

    Attributes:
        live, peak: bytes handed out now, and at most so far.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self.live = self.peak = 0

    def take(self, dtype: np.dtype, shape: tuple[int, ...]) -> Value:
        """A buffer with whatever it held before."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        free = self._free.get(size)
        raw = free.pop() if free else aligned(size)
        self.live += size
        self.peak = max(self.peak, self.live)
        return Value(raw, dtype, shape)

    def give(self, value: Value) -> None:
        """It may be taken again."""
        self.live -= value.raw.nbytes
        self._free.setdefault(value.raw.nbytes, []).append(value.raw)


def aligned(size: int) -> np.ndarray:
    """So many bytes, as kernels like to have them."""
    room = np.empty(size + ALIGNED, np.uint8)
    return room[-room.ctypes.data % ALIGNED :][:size]


@dataclass(frozen=True)
class Piece:
    """A part as a graph of its own.

    Attributes:
        reads: what comes from the batch or from other parts; state is not among it.
        makes: what others read, or the caller gets.
        states: state that it reads where it lies.
        placed: (old, new) names of state that it overwrites where it lies.
        copied: (old, new) names of state whose new value is brought there after it has run,
            because other parts read the old or the new one too.
    """

    graph: Graph
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    states: tuple[str, ...]
    placed: tuple[tuple[str, str], ...]
    copied: tuple[tuple[str, str], ...]

    def opened(self) -> Piece:
        """What is read of it once it has a session: its graph is let go."""
        return replace(self, graph=Graph((), {}, (), (), onnx.ModelProto()))


def cut(
    graph: Graph,
    parts: Mapping[Any, Sequence[Op]],
    about: StepSignature,
    again: Mapping[Any, Sequence[Op]] | None = None,
) -> dict[Any, Piece]:
    """Parts as graphs.

    A Reshape and the like is repeated in the parts that read its result, so that what it shows is
    not held twice.

    Args:
        parts: all ops of the graph.
        about: what its inputs and outputs mean.
        again: ops of other parts that a part repeats; others read what they make from this part.

    Raises:
        UnsupportedError: something that is no tensor, or of unknown shape, is read by two parts.
    """
    updates, known = about.updates, {v.input for v in about.variables}
    known |= {name for _, name in about.gradients}
    repeats = again or {}
    whole = {key: _with_aliases(graph, [*repeats.get(key, ()), *ops]) for key, ops in parts.items()}
    readers: dict[str, set[Any]] = {}
    for key, ops in whole.items():
        own = {name for op in ops for name in op.writes}
        for op in ops:
            for name in {*op.reads} - own:
                readers.setdefault(name, set()).add(key)
    kept = {*graph.outputs} - {*updates.values()}
    found: dict[Any, Piece] = {}
    writer = {name: key for key, ops in parts.items() for op in ops for name in op.writes}
    writer |= {name: key for key, ops in repeats.items() for op in ops for name in op.writes}
    moving = {
        old
        for old, new in updates.items()
        if new in writer and readers.get(old, set()) - {writer[new]}
    }
    states = ({*graph.inputs} & known) - moving
    for key, ops in whole.items():
        first = {name for op in ops for name in op.writes if writer[name] == key}
        shared = {name for name in first if readers.get(name, set()) - {key}}
        pairs = [(old, new) for old, new in updates.items() if new in first]
        placed = [p for p in pairs if p[0] not in moving and p[1] not in shared]
        copied = [p for p in pairs if p not in placed]
        makes = (shared | (kept & first) | {new for _, new in copied}) - {new for _, new in placed}
        if not makes and not placed:  # others repeat all of it: a session has to make something
            makes = {*ops[-1].writes}
        part = subgraph(graph, ops, makes | {new for _, new in placed})
        found[key] = Piece(
            part,
            tuple(n for n in part.inputs if n not in states),
            tuple(n for n in part.outputs if n in makes),
            tuple(n for n in part.inputs if n in states),
            tuple(placed),
            tuple(copied),
        )
    return found


def _with_aliases(graph: Graph, ops: Sequence[Op]) -> list[Op]:
    """The ops, and those that only show what others make in another shape; in the graph's order."""
    own = {name for op in ops for name in op.writes}
    added: dict[str, Op] = {}

    def need(name: str) -> None:
        op = _shows(graph, name)
        if name not in own and name not in added and op is not None:
            need(op.inputs[0])
            added[name] = op

    for op in ops:
        for name in op.reads:
            need(name)
    return sorted([*added.values(), *ops], key=lambda op: graph.producer[op.writes[0]])


def shown(graph: Graph, name: str) -> str:
    """What a value shows in another shape: parts are given that, and repeat the rest."""
    op = _shows(graph, name)
    return name if op is None else shown(graph, op.inputs[0])


def _shows(graph: Graph, name: str) -> Op | None:
    """The op that makes a value of another one and of constants, without copying."""
    at = graph.producer.get(name)
    op = None if at is None else graph.ops[at]
    if op is None or not is_alias(op):
        return None
    others = (n for n in op.reads if n != op.inputs[0])
    return op if all(graph.tensors[n].role is Role.WEIGHT for n in others) else None


class Flight:
    """The values of one batch.

    Args:
        readers: of everything that goes from part to part: how many read it.
    """

    def __init__(self, pool: Pool, readers: Mapping[str, int], feeds: Mapping[str, Any]) -> None:
        self._pool, self._left = pool, dict(readers)
        self._feeds = {name: wrap(array) for name, array in feeds.items()}
        self.values: dict[str, Value] = {}
        self.coming: dict[str, Transfer] = {}

    def has(self, name: str) -> bool:
        """It is there, or on its way."""
        return name in self._feeds or name in self.values

    def comes(self, name: str, value: Value, transfer: Transfer) -> None:
        """It will be there when the transfer is done."""
        self.values[name] = value
        self.coming[name] = transfer

    def ort(self, name: str) -> Any:
        """What a session reads."""
        return self._feeds[name] if name in self._feeds else self.values[name].ort

    def made(self, name: str, value: Value) -> None:
        """It is there; where nobody reads it, it goes at once."""
        if self._left.get(name):
            self.values[name] = value
        else:
            self._pool.give(value)

    def read(self, name: str) -> None:
        """One of its readers is done."""
        if name in self._feeds:
            return
        self._left[name] -= 1
        if not self._left[name]:
            self._pool.give(self.values.pop(name))

    def end(self) -> None:
        """Nobody reads anything any more."""
        for value in self.values.values():
            self._pool.give(value)
        self.values.clear()


class Pieces:
    """Sessions of parts, over state in place.

    Args:
        cut: the parts; those that are to run here.
        state: arrays of everything that they read as state.
        options: of every session.
        pool: of buffers, shared with others.
        folder: of weights that are left in files.
        arena: sessions take memory from the pool of the process, that of one part alone too; else
            one that is alone has memory of its own, which it keeps between runs.
    """

    def __init__(
        self,
        pieces: Mapping[Any, Piece],
        state: BoundState,
        options: Options,
        pool: Pool,
        folder: Path | None = None,
        *,
        arena: bool = False,
    ) -> None:
        self.pieces = {key: piece.opened() for key, piece in pieces.items()}
        self.pool, self._state = pool, state
        self._run = run_options()
        self._sessions: dict[Any, Any] = {}
        self._bindings: dict[Any, Any] = {}
        self.types = {
            name: (np.dtype(helper.tensor_dtype_to_np_dtype(t.dtype)), tuple(t.shape or ()))
            for piece in pieces.values()
            for name, t in piece.graph.tensors.items()
            if t.dtype and t.shape is not None
        }
        for key, piece in pieces.items():
            session = _opened(piece.graph, options, folder, alone=len(pieces) == 1 and not arena)
            self._sessions[key] = session
            binding = self._bindings[key] = session.io_binding()
            for name in piece.states:
                binding.bind_ortvalue_input(name, state.value(name))
            for old, new in piece.placed:
                array, shape = state.arrays[old], self.types[new][1]
                value = state.value(old) if array.shape == shape else wrap(array.reshape(shape))
                binding.bind_ortvalue_output(new, value)
        self.readers = Counter(name for piece in pieces.values() for name in piece.reads)

    def flight(
        self,
        feeds: Mapping[str, np.ndarray],
        kept: Iterable[str] = (),
        more: Counter[str] | None = None,
    ) -> Flight:
        """A batch sets out.

        Args:
            feeds: more than the parts read may be given.
            kept: values that the caller reads.
            more: further readers of values.
        """
        ready = {}
        for name in {name for piece in self.pieces.values() for name in piece.reads} & {*feeds}:
            dtype, shape = self.types[name]
            array = np.asarray(feeds[name])
            check_input(name, array, dtype, shape)
            ready[name] = np.asarray(array, dtype, order="C")
        for name in {name for piece in self.pieces.values() for name in piece.reads}:
            if name in self._state.arrays:  # other parts overwrite it
                ready[name] = self._state.arrays[name].copy()
        return Flight(self.pool, self.readers + Counter(kept) + (more or Counter()), ready)

    def run(self, key: Any, flight: Flight) -> None:
        """Run one part of a batch.

        Raises:
            ModelError: onnxruntime stopped.
            StoppedError: :meth:`abandon` was called.
        """
        piece, binding = self.pieces[key], self._bindings[key]
        for name in piece.reads:
            binding.bind_ortvalue_input(name, flight.ort(name))
        made = {name: self.pool.take(*self.types[name]) for name in piece.makes}
        for name, value in made.items():
            binding.bind_ortvalue_output(name, value.ort)
        run_bound(self._sessions[key], binding, self._run)
        for old, new in piece.copied:
            np.copyto(self._state.arrays[old], made[new].array)
        for name, value in made.items():
            flight.made(name, value)
        for name in piece.reads:
            flight.read(name)

    def abandon(self) -> None:
        """Stop the run that is on, and every later one; from any thread."""
        self._run.terminate = True


def _opened(graph: Graph, options: Options, folder: Path | None, *, alone: bool) -> Any:
    """A session of a part; one that is alone has memory of its own, at planned addresses."""
    made = session_options(options)
    # It would hold what is made when it is needed: tensors of zeros as large as activations.
    made.add_session_config_entry("optimization.disable_specified_optimizers", "ConstantFolding")
    made.add_session_config_entry("session.set_denormal_as_zero", "1")
    made.add_session_config_entry("session.force_spinning_stop", "1")
    if alone:
        listed = to_model(last_first(graph)).SerializeToString()
        source = model_source(listed, made, folder)
        return open_held(source, made, options, kept=False)
    if share_arena():
        made.add_session_config_entry("session.use_env_allocators", "1")
    with opening():
        return open_session(to_model(graph), made, folder)


def results(flight: Flight, names: Collection[str]) -> dict[str, np.ndarray]:
    """Copies of what the caller asked to be kept, which is then read."""
    found = {name: flight.values[name].array.copy() for name in names}
    for name in names:
        flight.read(name)
    return found
