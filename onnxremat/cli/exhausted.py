"""Whether an error is memory of this machine that ran out, whatever a library made of it."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator

from onnxremat.errors import ExhaustedError, OnnxrematError, UsageError

# As onnxruntime, protobuf, NumPy, the C++ library, Python and the system say it.
_SAID = (
    "std::bad_alloc", "Failed to allocate memory", "Arena alloc failed", "Unable to allocate",
    "Cannot allocate memory", "can't start new thread",
)  # fmt: skip
_ROOM = 64 << 20  # bytes; a process that cannot have them is short of memory


def out_of_memory(error: BaseException) -> ExhaustedError | None:
    """What to say instead of ``error`` where memory ran out, else None.

    An error that does not say so (libraries raise SystemError, or call a file damaged) counts where
    the process cannot have 64 MiB more afterwards.
    """
    if isinstance(error, OnnxrematError) and not isinstance(error, UsageError | ExhaustedError):
        return None  # what it says has been found out
    chain = list(_chain(error))
    if not any(_says_so(link) for link in chain) and _room():
        return None
    said = next((text for link in chain for text in str(link).splitlines() if text), "")
    return ExhaustedError(
        "out of memory on this machine",
        why=said[:300],
        hint="--threads 1 and smaller --shape or --dim need less; a limit on this process "
        "(ulimit -a, a container's) may be in the way",
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _says_so(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, MemoryError) or any(text in str(error) for text in _SAID)


def _room() -> bool:
    try:
        mmap.mmap(-1, _ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, ValueError):
        return False
    return True
