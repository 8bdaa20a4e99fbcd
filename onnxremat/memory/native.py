"""The compiled allocator: found, loaded, and called through ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from onnxremat.memory.compiled import compiled
from onnxremat.memory.events import EVENT, Blocks, Events, Integers

_POINTER = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "slab_register": (_POINTER, []),
    "slab_unregister": (ctypes.c_int, [_POINTER]),
    "slab_watch": (None, [_POINTER, ctypes.c_char_p]),
    "slab_error": (ctypes.c_char_p, []),
    "slab_begin": (ctypes.c_int, [_POINTER, _POINTER]),
    "slab_end": (ctypes.c_int64, [_POINTER]),
    "slab_recorded": (None, [_POINTER, _POINTER]),
    "slab_forget": (None, [_POINTER, _POINTER]),
    "slab_release": (None, [_POINTER]),
    "slab_close": (None, [_POINTER]),
    "slab_counts": (None, [_POINTER, _POINTER]),
    "slab_slot": (ctypes.c_int64, [_POINTER, _POINTER]),
    "common_new": (_POINTER, [ctypes.c_size_t]),
    "common_begin": (_POINTER, [_POINTER]),
    "common_live": (ctypes.c_int64, [_POINTER]),
    "common_close": (None, [_POINTER]),
    "look": (ctypes.c_int, [_POINTER, ctypes.c_int64, _POINTER]),
    "place": (
        ctypes.c_int64,
        [_POINTER, ctypes.c_int64, *[_POINTER] * 4, ctypes.c_int64, _POINTER],
    ),
    "trace_new": (
        _POINTER,
        [_POINTER, ctypes.c_int64, _POINTER, _POINTER, ctypes.c_int64, ctypes.c_size_t, _POINTER],
    ),
}  # fmt: skip


@cache
def _opened() -> Any:
    """The library with its functions, or a sentence that says why there is none."""
    c = compiled()
    if isinstance(c, str):
        return c
    try:
        if not c.slab_here():
            return "the compiled allocator serves Linux only"
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(c, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        return f"the compiled allocator does not load: {error}"
    return c


@cache
def library() -> Any:
    """The library with onnxruntime's interface in its hands, or a sentence that says why not."""
    c = _opened()
    if isinstance(c, str):
        return c
    import onnxruntime as ort

    try:  # opened before, or onnxruntime would close it together with the options
        ort.SessionOptions().register_custom_ops_library(c._name)
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        return f"onnxruntime does not take the allocator: {str(error).splitlines()[0]}"
    return c


def missing() -> str:
    """Why planned addresses cannot be had here; "" where they can."""
    found = library()
    return found if isinstance(found, str) else ""


_OPENING = threading.RLock()
STACK = 1 << 20  # bytes of a worker's stack, as on Windows; glibc's 8 MiB count against a limit


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """While a session is made: one at a time, since an allocator given to onnxruntime goes to any
    session that is made; its worker threads with small stacks, where the C library lets us."""
    with _OPENING:
        try:
            c = ctypes.CDLL(None)
            get, put = c.pthread_getattr_default_np, c.pthread_setattr_default_np
        except (AttributeError, OSError, TypeError):  # another C library
            yield
            return
        before, small = ctypes.create_string_buffer(128), ctypes.create_string_buffer(128)
        get(before)
        get(small)
        c.pthread_attr_setstacksize(small, ctypes.c_size_t(STACK))
        put(small)
        try:
            yield
        finally:
            put(before)


def trim() -> None:
    """Give what the C library keeps of freed blocks back to the system (glibc only)."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


Place = Callable[[Integers, Blocks], tuple[Integers, int]]


@cache
def compiled_place() -> Place | None:
    """The compiled inner loop of packing, or None where nothing is compiled."""
    c = _opened()
    if isinstance(c, str):
        return None

    def place(order: Integers, found: Blocks) -> tuple[Integers, int]:
        offset = np.zeros(len(found.size), np.int64)
        about = (order, found.size, found.first, found.stream, found.until)
        rows = [np.ascontiguousarray(row, np.int64) for row in about]
        given, streams = [row.ctypes.data for row in rows], found.until.shape[1]
        top = c.place(given[0], len(order), *given[1:], streams, offset.ctypes.data)
        if top < 0:
            raise MemoryError(len(order))
        return offset, int(top)

    return place


KEPT, HANDED_ON = 1, 2  # what outlives a run: held by whoever asked, or in the slab for the next


class CommonSlab:
    """One slab of several sessions, which hand on values in it. Its pages go when this does, and
    with the last block.

    Attributes:
        taken: runs have their blocks in it now. Whoever sets it sees to it that places are free.
        unfit: a run asked for other bytes than its places are for, and had blocks of its own.

    Raises:
        MemoryError: the system refuses so many bytes.
    """

    taken = unfit = False

    def __init__(self, size: int) -> None:
        self._c = library()
        self.at, self.bytes = self._c.common_new(size), size
        if not self.at:
            raise MemoryError(size)
        weakref.finalize(self, self._c.common_close, self.at)

    @property
    def begin(self) -> int:
        """The address of its first byte."""
        return int(self._c.common_begin(self.at))

    @property
    def live(self) -> int:
        """Blocks in it now."""
        return int(self._c.common_live(self.at))


class Slab:
    """One allocator, for one session.

    Raises:
        RuntimeError: onnxruntime does not take it.
    """

    def __init__(self) -> None:
        self._c = library()
        self._at = self._c.slab_register()
        if not self._at:
            raise RuntimeError(self._c.slab_error().decode())

    def watch(self, file: str) -> None:
        """Until :meth:`withdraw`, pages of ``file`` that a session has mapped and read, leave
        memory as it reserves its own."""
        self._c.slab_watch(self._at, file.encode())

    def withdraw(self) -> None:
        """No session made from now on gets it."""
        self._c.slab_watch(self._at, None)
        self._c.slab_unregister(self._at)

    def trace(
        self,
        events: Events,
        offset: Integers,
        kept: Any,
        size: int,
        common: CommonSlab | None = None,
    ) -> int:
        """Handle of a run that can be replayed. The library copies the arrays.

        Args:
            kept: per slot whether it outlives the run: :data:`KEPT`, :data:`HANDED_ON` or 0.
            common: the slab that offsets are in, where it is not the session's own.
        """
        events, offset = np.ascontiguousarray(events), np.ascontiguousarray(offset, np.int64)
        kept = np.ascontiguousarray(kept, np.int8)
        rows = (events.ctypes.data, len(events), offset.ctypes.data, kept.ctypes.data)
        made = self._c.trace_new(*rows, len(offset), size, common.at if common else None)
        if not made:
            raise MemoryError(size)
        return int(made)

    def begin(self, trace: int | None) -> bool:
        """This thread begins a run: replayed, or recorded without a trace. False where the slab is
        taken and nothing begins."""
        return not self._c.slab_begin(self._at, trace)

    def end(self) -> int:
        """This thread's run is over: 0 where it went as recorded, else another number; of a
        recorded run how many events it had, -1 where they are unknown."""
        return int(self._c.slab_end(self._at))

    def recorded(self, count: int) -> Events:
        """The ``count`` events of the run recorded last."""
        found = np.empty(count, EVENT)
        self._c.slab_recorded(self._at, found.ctypes.data)
        return found

    def slot(self, address: int) -> int:
        """The slot of the run recorded last that has a block there, -1 where none has."""
        return int(self._c.slab_slot(self._at, address))

    def forget(self, trace: int) -> None:
        """Free a trace, while no run is on."""
        self._c.slab_forget(self._at, trace)

    def release(self) -> None:
        """Between runs: what is held for the next one goes to the system."""
        self._c.slab_release(self._at)

    def close(self) -> None:
        """The session is gone. What callers still hold of it stays theirs."""
        self._c.slab_close(self._at)

    def counts(self) -> dict[str, int]:
        """Runs that went as planned, that differed, that found the slab taken; bytes of weights
        and of the slab; blocks live in it."""
        found = (ctypes.c_int64 * 6)()
        self._c.slab_counts(self._at, found)
        names = ("planned", "differed", "elsewhere", "weights", "slab", "live")
        return dict(zip(names, found, strict=True))


def compiled_look() -> Any:
    """The compiled loop that looks for a token (``execute/tokens.py``): addresses of two words and
    a number of times; None where nothing is compiled."""
    c = _opened()
    return None if isinstance(c, str) else c.look
