"""What is said of buffers that a trainer gives an old value and a new one."""

from __future__ import annotations

from collections.abc import Sequence

from onnxremat.grad import updated_inputs
from onnxremat.graph.ir import Graph
from onnxremat.graph.overwriting import Late, late_as_listed
from onnxremat.pipeline.artifact import Check, Kind
from onnxremat.session.compare import Difference
from onnxremat.session.repeats import Repeats


def buffers_check(found: Difference, count: int, own: Repeats | None = None) -> Check:
    """A run with shared buffers against one without, bit by bit.

    Args:
        count: how many are shared.
        own: how far runs of the same step are apart.
    """
    name = "same bits with updates in place"
    if found.bit_equal:
        return Check(Kind.OUTPUTS, name, True, f"{count} buffers, shared as a trainer shares them")
    if own is not None and own.allows(found, exact=True):
        return Check(Kind.OUTPUTS, name, True, "as near as two runs without sharing may be")
    text = (
        f"output '{found.output}' differs by {found.worst:.2g} where new values are written over "
    )
    return Check(Kind.OUTPUTS, name, False, text + "old ones: something reads them too late")


def order_check(graph: Graph) -> list[Check]:
    """Whether a graph that runs as it is listed reads every old value before it is written over;
    nothing of a graph that updates nothing."""
    updates = updated_inputs(graph.model)
    if not updates:
        return []
    late: Sequence[Late] = late_as_listed(graph.ops, updates)
    text = f"{len(updates)} buffers"
    if late:
        text = f"op '{late[0].reader}' reads '{late[0].old}' after '{late[0].writer}' wrote over it"
    return [Check(Kind.ORDER, "old values are read before they are written over", not late, text)]
