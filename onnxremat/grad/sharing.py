"""Whether a training step may be run with new values written over old ones."""

from __future__ import annotations

import onnx

from onnxremat.errors import ModelError
from onnxremat.grad.description import updated_inputs
from onnxremat.graph.onnx_io import to_ops
from onnxremat.graph.overwriting import late_as_listed, late_in_any_order


def require_early_reads(step: onnx.ModelProto, *, listed: bool = False) -> None:
    """Each old value is read before its new one is made.

    This looks at the finished graph, at parameters, optimizer state, statistics and counters alike,
    and knows nothing of what had the updates wait (:mod:`onnxremat.grad.ordering`).

    Args:
        listed: nodes run in the order of the file; else in any order that they allow.

    Raises:
        ModelError: something may read an old value too late: training would be silently wrong.
    """
    updates = updated_inputs(step)
    ops = to_ops(step)
    known = {tensor.name for tensor in step.graph.initializer} - updates.keys()
    late = late_as_listed(ops, updates) if listed else late_in_any_order(ops, updates, known)
    if late:
        raise ModelError(
            f"the step may read '{late[0].old}' after its new value is written over it",
            where=f"node {late[0].reader}, which does not run before {late[0].writer}",
            why=f"a trainer gives both one buffer; there are {len(late)} such reads",
            hint="make the step again with onnxremat differentiate; if it is as that made it, "
            "please report the model",
        )
