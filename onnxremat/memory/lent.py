"""Weights that a session reads in files while it is opened, lent to it. Linux only.

A kernel packs its weight into memory of the session's own. onnxruntime lets go of the original
once its last reader has packed it: where the parts of a batch share their weights, or a body
repeats, all of them are there twice until the last part is reached. So each file is mapped here,
its weights are given to onnxruntime as values over that mapping, and what it has read of them
leaves memory while it reads on: pages come back from the file where they are read again. The
mapping is ours until the session is open, so no page is ever another's; and it cannot be written
to, so that a limit on data does not count it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T

from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.protobuf import BYTES, GRAPH, INITIALIZER, fields
from onnxremat.graph.weights import Place, place
from onnxremat.memory.mapped import Range
from onnxremat.memory.native import trim

PAGE = mmap.PAGESIZE
LENT = (
    T.FLOAT, T.DOUBLE, T.FLOAT16, T.INT8, T.UINT8, T.INT16, T.UINT16, T.INT32, T.UINT32, T.INT64,
    T.UINT64, T.BFLOAT16,
)  # fmt: skip  # element types that are lent
BFLOAT, CODE = 4, 20  # DLPack: kDLBfloat; where a DLTensor says the kind of its elements
PAUSE = 0.0005  # seconds between two looks at what was read
READ = 1 << 20  # bytes that may be read before they are let go
_STATM = Path("/proc/self/statm")


class LentWeights:
    """Weights that a model says lie in files, as values for one session.

    Attributes:
        wholes: addresses of the mappings, one per file that something is lent of.
    """

    def __init__(self, folder: Path, content: bytes) -> None:
        """
        Args:
            folder: of the model, which its files are relative to.
            content: a serialised model, its big weights in files.
        """
        self._values: dict[str, Any] = {}
        self._alive: list[tuple[weakref.ref[Any], Range]] = []
        self._files: dict[str, mmap.mmap] = {}
        self.wholes: set[Range] = set()
        for tensor, where in _lying_in_files(content):
            file = folder / where.location
            if file.is_file() and where.start + where.length <= file.stat().st_size:
                self._lend(tensor, where, self._mapped(file, where.location))

    def _mapped(self, file: Path, name: str) -> mmap.mmap:
        if name in self._files:
            return self._files[name]
        with file.open("rb") as opened:  # writable at first: numpy lends nothing that is not
            rights = mmap.PROT_READ | mmap.PROT_WRITE
            made = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=rights)
        begin = np.frombuffer(made, np.uint8).ctypes.data
        self.wholes.add((begin, begin + -(-len(made) // PAGE) * PAGE))
        size = ctypes.c_size_t(len(made))
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(begin), size, mmap.PROT_READ)
        self._files[name] = made
        return made

    def _lend(self, tensor: onnx.TensorProto, where: Place, file: mmap.mmap) -> None:
        bfloat = tensor.data_type == T.BFLOAT16  # which numpy does not know
        dtype = (
            np.dtype(np.uint16)
            if bfloat
            else onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        )
        count = where.length // dtype.itemsize
        array = np.frombuffer(file, dtype, count, where.start).reshape(tuple(tensor.dims))
        lent = _as_bfloat16(array) if bfloat else array
        self._values[tensor.name] = ort.OrtValue.from_dlpack(lent)
        begin = array.ctypes.data
        pages = (begin // PAGE * PAGE, -(-(begin + array.nbytes) // PAGE) * PAGE)
        self._alive.append((weakref.ref(array), pages))

    def give(self, made: Any) -> None:
        """Let the session that is made with these options read them here."""
        for name, value in self._values.items():
            made.add_initializer(name, value)

    @contextlib.contextmanager
    def letting_go(self) -> Iterator[None]:
        """Meanwhile, what was read of them leaves memory: onnxruntime works without Python's lock,
        so another thread can see to that."""
        if not self._values:
            yield
            return
        done = threading.Event()
        thread = threading.Thread(target=self._follow, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self._let_go()

    def _let_go(self) -> None:
        for file in self._files.values():
            file.madvise(mmap.MADV_DONTNEED)

    def _follow(self, done: threading.Event) -> None:
        before = _file_bytes()
        while not done.wait(PAUSE):
            if _file_bytes() - before > READ:
                self._let_go()
                trim()  # a packed copy of what is packed already is freed again
                before = _file_bytes()

    def kept(self) -> tuple[set[Range], set[Range]]:
        """Pages that the open session goes on reading, and those that it does not; afterwards
        nothing is lent."""
        self._values.clear()
        held = _joined(pages for array, pages in self._alive if array() is not None)
        free: set[Range] = set()
        for begin, stop in self.wholes:
            inside = [pages for pages in held if begin <= pages[0] < stop]
            ends = [begin, *(end for pages in inside for end in pages), stop]
            free |= {
                pages for pages in zip(ends[::2], ends[1::2], strict=True) if pages[0] < pages[1]
            }
        return set(held), free


def _as_bfloat16(array: Any) -> Any:
    """The DLPack capsule of an array of 16-bit words, its elements said to be bfloat16."""
    capsule = array.__dlpack__()
    inside = ctypes.pythonapi.PyCapsule_GetPointer
    inside.restype, inside.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_uint8.from_address(inside(capsule, b"dltensor") + CODE).value = BFLOAT
    return capsule


def _lying_in_files(content: bytes) -> Iterator[tuple[onnx.TensorProto, Place]]:
    """Weights of a serialised model that lie in files, and where; of types that can be lent."""
    for number, kind, _, begin, end in fields(content, 0, len(content)):
        if number != GRAPH or kind != BYTES:
            continue
        for number, kind, _, inside, stop in fields(content, begin, end):
            if number != INITIALIZER or kind != BYTES or stop - inside > PAGE:
                continue
            tensor = onnx.TensorProto.FromString(content[inside:stop])
            where = place(tensor)
            if where is None or tensor.data_type not in LENT:
                continue
            if where.length == tensor_bytes(tensor.data_type, tensor.dims):
                yield tensor, where  # others are onnxruntime's to refuse


def _joined(ranges: Iterator[Range]) -> list[Range]:
    """Ranges in order, those that touch as one."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _file_bytes() -> int:
    """Bytes of files that this process has in memory."""
    return int(_STATM.read_bytes().split()[2]) * PAGE
