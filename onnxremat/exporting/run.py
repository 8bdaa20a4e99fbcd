"""A run of an exported file, which onnxruntime may refuse at any node: exporters write what it has
no kernel for, such as convolutions that are dilated and padded by ``SAME``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxremat.errors import ModelError
from onnxremat.ort.session import first_line


def run_file(
    session: Any, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Outputs of these names, all by default.

    Raises:
        ModelError: onnxruntime stopped.
    """
    try:
        found: list[np.ndarray] = session.run(names, dict(feeds))
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        raise ModelError(
            "onnxruntime stopped in the middle of a run of the exported file",
            why=first_line(error),
            hint="the other exporter may write it otherwise",
        ) from error
    return found
