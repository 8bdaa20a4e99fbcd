"""If, Loop and Scan: PyTorch runs the bodies, which are functions here."""

from __future__ import annotations

import torch

from tests.torch.node import Node, Operator, Result, Tensor


def branches(n: Node) -> Result:
    """The branch that the condition takes."""
    return n.get("then_branch" if bool(n[0]) else "else_branch")()


def loop(n: Node) -> Result:
    """As often as the count says and the condition holds."""
    states, made = [n[k] for k in range(2, len(n.inputs))], list[list[Tensor]]()
    goes_on, run = n.maybe(1) is None or bool(n[1]), 0
    while goes_on and (n.maybe(0) is None or run < int(n[0])):
        condition, *rest = n.get("body")(torch.tensor(run), torch.tensor(True), *states)
        states, goes_on, run = rest[: len(states)], bool(condition), run + 1
        made.append(rest[len(states) :])
    return [*states, *(torch.stack(rows) for rows in zip(*made, strict=True))]


def scan(n: Node) -> Result:
    """A run per slice of what is scanned."""
    count = n.get("num_scan_inputs")
    states = [n[k] for k in range(len(n.inputs) - count)]
    axes, ways = (n.get(f"scan_input_{k}", [0] * count) for k in ("axes", "directions"))
    given = [
        list(n[len(states) + k].unbind(axis))[:: -1 if way else 1]
        for k, (axis, way) in enumerate(zip(axes, ways, strict=True))
    ]
    made = list[list[Tensor]]()
    for slices in zip(*given, strict=True):
        found = n.get("body")(*states, *slices)
        states = found[: len(states)]
        made.append(found[len(states) :])
    columns = list(zip(*made, strict=True))
    outs = [n.get(f"scan_output_{k}", [0] * len(columns)) for k in ("axes", "directions")]
    return [
        *states,
        *(torch.stack(rows[:: -1 if way else 1], axis)
          for rows, axis, way in zip(columns, *outs, strict=True)),
    ]  # fmt: skip


CONTROL: dict[str, Operator] = {"If": branches, "Loop": loop, "Scan": scan}
