"""A model as it came, run by onnxruntime itself.

What onnxremat works on is read: functions are written out, names made different, sparse weights
dense. Were something read wrongly, all that follows from it would agree; the file itself would not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from onnxremat.errors import ModelError, VerificationError
from onnxremat.graph.onnx_io import from_object
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import Feeds, named_outputs, owned, run_session
from onnxremat.ort.session import DEFAULT, Options, open_session, session_options
from onnxremat.pipeline.original.lost_sums import may_lose_sums
from onnxremat.pipeline.original.source import Source
from onnxremat.session.compare import compare
from onnxremat.session.repeats import repeats


@dataclass
class AsItCame:
    """A model in the form in which it was given.

    Attributes:
        given: a file, or a model in memory.
        read: the same as onnxremat reads it, for where onnxruntime does not open the former.
        folder: where external weights of ``read`` are.
        refused: why it was not opened, once that was seen.
    """

    given: Path | onnx.ModelProto
    read: onnx.ModelProto
    folder: Path | None
    refused: str = ""

    @classmethod
    def of(cls, source: Source, read: onnx.ModelProto, folder: Path | None) -> AsItCame:
        """What is read from a source."""
        if isinstance(source, str | os.PathLike):
            return cls(Path(source), read, folder)
        model = source if isinstance(source, onnx.ModelProto) else from_object(source)
        return cls(model, read, folder)

    def session(self, options: Options = DEFAULT) -> Any:
        """A session on it.

        Raises:
            ModelError: onnxruntime does not even open it as it was read.
        """
        made = session_options(options)
        if not self.refused:
            try:
                return open_session(self.given, made, read=self.read)
            except ModelError as error:
                self.refused = error.why or error.what
        return open_session(self.read, made, self.folder)

    def outputs(self, feeds: Feeds) -> dict[str, Any]:
        """What it returns under default options; with one thread where several lose sums.

        Raises:
            ModelError: it cannot be run.
        """
        alone = replace(DEFAULT, threads=1)
        session = self.session(alone if may_lose_sums(self.read) else DEFAULT)
        names = [value.name for value in session.get_outputs()]
        return owned(names, run_session(session, feeds))


def require_same(
    original: AsItCame, seed: int, seen: tuple[Feeds, Mapping[str, Any]] | None
) -> list[str]:
    """A note where it cannot be seen whether onnxruntime reads a model likewise.

    Args:
        seed: of inputs.
        seen: inputs, and what it returned for them as it was read; None where it was not run.

    Raises:
        VerificationError: the file itself returns something else.
    """
    if seen is None:
        given = seeded_feeds(build_graph(original.read, original.folder), seed)
        seen = given, named_outputs(original.read, given, original.folder)
    feeds, found = seen
    difference = compare(found, original.outputs(feeds))
    if original.refused:
        return [
            "onnxruntime does not open the file as it came: what its functions mean is as "
            f"onnxremat reads them ({original.refused})"
        ]
    if difference.ok or repeats(original.session(), feeds).allows(difference):
        return []
    raise VerificationError(
        "the functions of the model are read otherwise than onnxruntime reads them",
        why=f"output '{difference.output}' differs by {difference.worst:.2g} from that of the file",
        hint="please report it, with the file; exported without functions it can be used",
    )
