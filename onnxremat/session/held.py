"""Sessions that hold their planned bytes and no more: the best way there is on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxremat.memory.mapped import make_own, mapped
from onnxremat.memory.native import missing, opening, trim
from onnxremat.ort.session import Options, refused

if TYPE_CHECKING:
    from onnxremat.memory.session import PlannedSession

FOLDER = "session.model_external_initializers_file_folder_path"


def open_light(file: Path, content: bytes, made: Any, options: Options) -> PlannedSession:
    """A session of a model whose big weights are left in its file (:mod:`onnxremat.graph.wire`).

    Args:
        file: where the weights are, and the whole model.
        content: the model without them.
        made: the ``onnxruntime.SessionOptions`` of ``options``, and what else is wanted.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    made.add_session_config_entry(FOLDER, str(file.parent))
    with opening():
        before = mapped(file)
        session = open_held(content, made, options, str(file))
        make_own(mapped(file) - before)
    trim()
    return session


def open_held(source: str | bytes, made: Any, options: Options, where: str = "") -> PlannedSession:
    """A session on the CPU provider with planned addresses, or why not.

    Args:
        source: a file, or a serialised model.
        made: the ``onnxruntime.SessionOptions`` of ``options``, and what else is wanted.
        where: the file, for errors.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    from onnxremat.memory.session import SHARED, PlannedSession, SlabSession

    why = "asked for without" if not options.arena else missing()
    kind = PlannedSession if why else SlabSession
    if not why:
        made.add_session_config_entry(SHARED, "1")
    try:
        session = kind(source, made, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        raise refused(where or source, error) from error
    session.why = why
    return session
