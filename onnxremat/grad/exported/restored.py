"""One thing that an exporter did to a parameter (:mod:`onnxremat.grad.exported.unfold`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

CORES = frozenset({"expand", "share", "fill", "mask"})  # these make a parameter of another name


@dataclass(frozen=True)
class Restored:
    """One thing undone.

    Attributes:
        how: copy, use, bias, tie, expand, share, pick, mask, fill, part or computed.
        parameter: the tensor that is trained in place of ``tensor``, or beside it (``bias``).
        tensor: what the file has: an initializer (for ``bias`` the weight of its node), or the
            output of an Identity (``copy``).
        node, position: the reader and its input, for ``use`` and ``bias``; the reader by its first
            output.
        axes: permutation for ``tie``, repeated axes for ``expand``, where the zeros begin and end
            for ``fill``; axis, begin and end for ``part``.
        form, number: for ``computed``, see :mod:`onnxremat.grad.exported.computed`.
    """

    how: str
    parameter: str
    tensor: str
    node: str = ""
    position: int = -1
    axes: tuple[int, ...] = ()
    form: str = ""
    number: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For the metadata of a training step."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Restored:
        """The reverse of :meth:`to_dict`."""
        return cls(**{**data, "axes": tuple(data.get("axes", ()))})
