"""What a command would write is none of what it reads, and no two outputs are one file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from os import fstat
from os.path import samestat
from pathlib import Path
from stat import S_ISREG
from typing import Any

from onnxremat.errors import OnnxrematError, UsageError

# Parameters of commands that name a file or folder to be written; all others are read.
OUTPUTS = (
    "target_file", "output", "save", "report", "plot", "trace", "csv", "write_model",
    "write_graph", "checkpoint", "export", "folder",
)  # fmt: skip


def check_outputs(given: Mapping[str, Any]) -> None:
    """Fail before anything is read.

    Args:
        given: what a command was given, by the names of its parameters.

    Raises:
        UsageError: an output is an input, or another output, or would go to a pipe.
    """
    outputs = {name: str(given[name]) for name in OUTPUTS if given.get(name)}
    inputs = [value for name, value in given.items() if name not in OUTPUTS]
    read = {place: path for value in inputs for path in _paths(value) if (place := _place(path))}
    seen: dict[object, str] = {}
    for path in outputs.values():
        if path == "-":
            raise UsageError("nothing is written to a pipe: '-'", hint="give the name of a file")
        file = _place(path) or str(Path.cwd() / path)
        if isinstance(file, tuple) and file in read and _one_file(path, read[file]):
            raise UsageError(
                f"the output is the input: {path}", hint="choose another name for the output"
            )
        if isinstance(file, tuple) and file in _weights(inputs):
            from onnxremat.graph.onnx_io import overwrites

            raise overwrites(path)
        if file in seen and (isinstance(file, str) or _one_file(path, seen[file])):
            raise UsageError(f"two outputs are one file: {path}", hint="choose another name")
        seen[file] = path


def _one_file(one: str, other: str) -> bool:
    """Whether two names whose files had the same number, one after the other, are of one file.

    Both are open as they are compared: what another process puts in the place of the first may
    leave its number to the second.
    """
    try:
        with Path(one).open("rb") as first, Path(other).open("rb") as second:
            return samestat(fstat(first.fileno()), fstat(second.fileno()))
    except FileNotFoundError:
        return False
    except OSError:  # one that may not be read
        return True


def _paths(value: Any) -> list[str]:
    """What may be the name of a file."""
    if isinstance(value, str | Path):
        return [str(value)]
    if isinstance(value, list | tuple):
        return [path for part in value for path in _paths(part)]
    return []


def _weights(inputs: list[Any]) -> set[tuple[int, int] | None]:
    """Files of weights beside the models that are read."""
    from onnxremat.graph.onnx_io import files_of, read_model

    found = set()
    for name in {path for value in inputs for path in _paths(value) if path.endswith(".onnx")}:
        with suppress(OnnxrematError, OSError):  # what is wrong with it is said when it is read
            files = files_of(read_model(name), Path(name).parent)
            found |= {_place(str(file)) for file in files}
    return found


def _place(path: str) -> tuple[int, int] | None:
    """The same for every name of a file, links too; None where there is no file of this name."""
    try:
        found = Path(path).stat() if path else None
    except (OSError, ValueError):  # or words that no file system takes
        return None
    return (found.st_dev, found.st_ino) if found and S_ISREG(found.st_mode) else None
