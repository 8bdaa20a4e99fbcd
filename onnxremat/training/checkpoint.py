"""What a checkpoint says beside its tensors: how far a run was, beside which frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from onnxremat.errors import ModelError
from onnxremat.grad.description import StepSignature
from onnxremat.training.progress import Progress

FROZEN, VERSION = "frozen", "version"
WRITTEN = "1"  # the version


def facts_of(about: StepSignature, progress: Progress, rows: int, gathers: int) -> dict[str, str]:
    """For the file.

    Args:
        rows: of a step.
        gathers: steps per update.
    """
    facts = {"format": "onnxremat-checkpoint", VERSION: WRITTEN, **progress.facts(rows, gathers)}
    return {**facts, FROZEN: _frozen(about)}


def progress_in(
    path: Path, facts: Mapping[str, str], about: StepSignature, rows: int, gathers: int
) -> Progress:
    """How far the run was.

    Args:
        path: the file.
        facts: that it has.
        about: the step that is to go on with it.
        rows: of a step.
        gathers: steps per update.

    Raises:
        ModelError: it does not say, its tensors were trained beside other frozen values, or it is
            of a later version.
    """
    if facts.get(VERSION, WRITTEN) != WRITTEN:
        raise ModelError(
            f"{path} is a checkpoint of version {facts[VERSION]}",
            why=f"this onnxremat reads version {WRITTEN}",
            hint="go on with the onnxremat that wrote it",
        )
    if facts.get(FROZEN, _frozen(about)) != _frozen(about):
        raise ModelError(
            f"{path} is a checkpoint of another training graph",
            why="what it holds was trained beside other values of what is frozen",
            hint="resume with the step it was made with, or start anew with another file",
        )
    try:
        return Progress.from_facts(facts, rows, gathers)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{path} does not say how far the run was", why=str(error)) from error


def _frozen(about: StepSignature) -> str:
    """One mark of all that a step holds for good."""
    marks = sorted(f"{row.name} {row.mark}" for row in about.weights if row.mark)
    return f"{crc32(chr(10).join(marks).encode()):08x}"
