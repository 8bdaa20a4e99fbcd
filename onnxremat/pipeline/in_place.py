"""Which results of a training step a budget takes as written over what they replace."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx

from onnxremat.grad import updated_inputs
from onnxremat.session.process import UPDATES


def in_place(model: onnx.ModelProto, not_counted: Collection[str] | None) -> Mapping[str, str]:
    """Parameters and state to the outputs with their new values; empty where the budget counts
    both, and for other models.

    Args:
        not_counted: what the budget leaves out.
    """
    return updated_inputs(model) if UPDATES in (not_counted or ()) else {}
