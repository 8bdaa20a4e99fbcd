"""Sessions that hold their planned bytes and no more: the best way there is on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxremat.memory.arena import Region
from onnxremat.memory.mapped import leave, make_own, mapped
from onnxremat.memory.native import missing, opening, trim
from onnxremat.ort.providers import CPU
from onnxremat.ort.session import Options, refused, session_options

if TYPE_CHECKING:
    from onnxremat.memory.session import PlannedSession

FOLDER = "session.model_external_initializers_file_folder_path"


Search = Callable[[], "Region | str"]


def open_light(
    file: Path, content: str | bytes, made: Any, options: Options, search: Search | None = None
) -> PlannedSession:
    """A session of a model whose big weights are left in its file (:mod:`onnxremat.graph.wire`).

    Args:
        file: where the weights are, and the whole model.
        content: the model without them.
        made, options, search: as for :func:`open_held`.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    from onnxremat.memory.lent import LentWeights
    from onnxremat.memory.session import SHARED

    made.add_session_config_entry(FOLDER, str(file.parent))
    with opening():
        before = mapped(file)
        # Where onnxruntime changes the graph it may lay out a weight anew under its old name.
        unchanged = content if isinstance(content, bytes) and not options.fuses else b""
        lent = LentWeights(file.parent, unchanged)
        lent.give(made)
        with lent.letting_go():
            session = open_held(content, made, options, search, str(file), kept=False)
        # Its options refer to what was lent, and are used again where providers are set anew.
        plain = session_options(options)
        if session.method != "arena":
            plain.add_session_config_entry(SHARED, "1")
        session._sess_options = session._sess_options_initial = plain
        kept, free = lent.kept()
        trim()  # of packed copies that were thrown away; the thread above may not have had its turn
        make_own(mapped(file) - before - lent.wholes | kept)
        leave(free)
    trim()
    return session


def open_held(
    source: str | bytes,
    made: Any,
    options: Options,
    search: Search | None = None,
    where: str = "",
    *,
    kept: bool = True,
) -> PlannedSession:
    """A session on the CPU provider that holds its bytes in the best way there is here.

    Args:
        source: a file, or a serialised model.
        made: the ``onnxruntime.SessionOptions`` of ``options``, and what else is wanted.
        search: finds the arena that holds least, or says why there is none; asked where planned
            addresses cannot be had.
        where: the file that the weights are mapped from, if any.
        kept: the session keeps a serialised model as long as it lives: without it, providers can
            only be set anew where it has a file.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    try:
        session = _best(source, made, options, search, where)
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        raise refused(where or source, error) from error
    if not kept:
        session._model_bytes = None
    return session


def _best(
    source: str | bytes, made: Any, options: Options, search: Search | None, file: str
) -> PlannedSession:
    from onnxremat.memory.session import SHARED, PlannedSession, RegionSession, SlabSession

    why = missing()
    if options.arena and not why:
        made.add_session_config_entry(SHARED, "1")
        return SlabSession(source, made, providers=[CPU], file=file)
    region = search() if options.arena and search else ""
    if isinstance(region, Region):
        session: PlannedSession = RegionSession.opened(source, made, region)
    else:
        session = PlannedSession(source, made, providers=[CPU])
        why = "; ".join(text for text in (why, region) if text)
    session.why = why if options.arena else "no arena was asked for"
    return session
