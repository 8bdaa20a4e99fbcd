"""A last word where a library crashes: compiled code that ends the process, as some models make
onnxruntime do. Python can say nothing then, so the words are laid ready as each stage begins."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

AS_GIVEN = ("reading the model", "measuring the original", "running")  # nothing is changed then
BACKWARD = "adding the backward pass"
NOT_OURS, OURS = 7, 1  # exit codes: what onnxruntime does not run, and what nobody foresaw


class LastWord:
    """What a crash is told with.

    Attributes:
        wanted: this process is a command, not one that calls commands.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._step = False  # what runs is a training step that was made of the model

    def at(self, stage: str) -> None:
        """From now on this is what is done."""
        if not self.wanted or (say := _compiled()) is None:
            return
        self._step = self._step or stage == BACKWARD
        where = f"  where {stage}\n" if stage else ""
        given = stage in AS_GIVEN and not self._step
        before, why, code = (_OF_MODEL, _MODEL, NOT_OURS) if given else (_OF_US, _US, OURS)
        say(before.encode(), f")\n{where}{why}".encode(errors="replace"), code)


_OF_MODEL, _OF_US = "error: onnxruntime crashes on this model (", "error: a library crashed ("
_MODEL = (
    "  why   it was run as it is in its file: onnxruntime by itself crashes on it, too\n"
    "  try   --data with inputs of yours, if made-up ones may be what it does not stand; or export "
    "it in another way (the other exporter of torch.onnx.export, optimize=True); or another "
    "version of onnxruntime; ONNXREMAT_DEBUG=1 shows where, and lets it dump its core\n"
)
_US = (
    "  why   onnxruntime, or a solver, met something that it does not stand\n"
    "  try   --data with inputs of yours, if made-up ones may be what it does not stand; else "
    "please report it with the model, or what makes it, and what ONNXREMAT_DEBUG=1 shows\n"
)


@cache
def _compiled() -> Any:
    """The function that lays words ready, None where there is none or Python is to tell itself."""
    if os.environ.get("ONNXREMAT_DEBUG"):
        import faulthandler

        faulthandler.enable()
        return None
    from onnxremat.memory.compiled import compiled

    return getattr(compiled(), "last_word", None)


LAST_WORD = LastWord()
