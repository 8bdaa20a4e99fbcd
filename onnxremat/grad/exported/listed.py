"""What initializers were in the framework, as ``onnxremat.export`` keeps it in the metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import onnx

from onnxremat import plain_json
from onnxremat.errors import ModelError

KEY = "onnxremat.parameters"
LISTS = ("trained", "frozen", "stopped", "buffers", "resting", "unused")


@dataclass(frozen=True, repr=False)
class Parameters:
    """Names as ``module.named_parameters()`` and ``named_buffers()`` have them.

    Attributes:
        trained: parameters that require a gradient and have a part in the outputs.
        frozen: parameters that do not require one, or get none: the module stops it.
        stopped: the latter of these.
        buffers: of the module.
        resting: running means of batch normalizations that are in eval mode, the module being in
            training mode.
        tied: further name of a parameter or buffer to the one it is stored under.
        unused: parameters that require a gradient and that the file does not hold, because no
            output depends on them.
    """

    trained: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    resting: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """How many of each: the names of a network fill pages."""
        counts = (f"{name}: {len(names)}" for name, names in vars(self).items() if names)
        return f"Parameters({', '.join(counts)})"

    def to_json(self) -> str:
        """For the metadata of the model."""
        return json.dumps({"version": 1, **asdict(self)})


def parameters_of(model: onnx.ModelProto) -> Parameters | None:
    """The facts in a model's metadata, None where it has none.

    Raises:
        ModelError: unreadable, or of a later version.
    """
    for entry in model.metadata_props:
        if entry.key != KEY:
            continue
        try:
            data = plain_json.loads(entry.value)
            if data.pop("version") != 1:
                raise ModelError("the model was exported by a later onnxremat")
            lists = {k: tuple(data.get(k, ())) for k in LISTS}
            return Parameters(**lists, tied=dict(data.get("tied", {})))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(
                f"unreadable metadata '{KEY}'", why=str(error), hint="export the model again"
            ) from error
    return None
