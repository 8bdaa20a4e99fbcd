"""A formula of single elements as one compiled loop: every element is read once and written once,
where op by op each would go through a core's caches many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx.numpy_helper import to_array

# In Python, as Numba knows it; {0} and so on are what an op reads.
TERMS = {
    "Abs": "np.abs({0})",
    "Add": "{0} + {1}",
    "Div": "{0} / {1}",
    "Exp": "np.exp({0})",
    "Identity": "{0}",
    "Log": "np.log({0})",
    "Mul": "{0} * {1}",
    "Neg": "-{0}",
    "Pow": "np.power({0}, {1})",
    "Reciprocal": "one / {0}",
    "Sign": "np.sign({0})",
    "Sqrt": "np.sqrt({0})",
    "Sub": "{0} - {1}",
}
# The same of any number of values, two at a time.
JOINED = {"Max": "np.maximum({0}, {1})", "Min": "np.minimum({0}, {1})", "Sum": "{0} + {1}"}
OPERATORS = TERMS.keys() | JOINED.keys()

Loop = Callable[..., None]


def loop_of(formula: onnx.ModelProto, rows: list[str], changed: dict[str, str]) -> Loop:
    """The formula for rows of any one length, in single precision.

    Args:
        rows: its inputs that are rows; the others are single numbers.
        changed: of rows that it overwrites the outputs with their new values.

    Returns:
        What takes the rows, and then the numbers in the order of the formula's inputs.
    """
    import numba  # loaded when several processes share an update, not by every `train`
    from numba import types

    graph = formula.graph
    numbers = [value.name for value in graph.input if value.name not in rows]
    names = {name: f"row{k}[i]" for k, name in enumerate(rows)}
    names |= {name: f"number{k}" for k, name in enumerate(numbers)}
    known: dict[str, Any] = {"np": np, "one": np.float32(1.0)}
    for k, tensor in enumerate(graph.initializer):
        names[tensor.name] = f"constant{k}"
        known[f"constant{k}"] = np.float32(to_array(tensor).item())
    lines = []
    for k, node in enumerate(graph.node):
        read = [names[name] for name in node.input]
        lines.append(f"value{k} = {_term(node.op_type, read)}")
        names[node.output[0]] = f"value{k}"
    lines += [f"{names[old]} = {names[new]}" for old, new in changed.items()]
    given = [*(f"row{k}" for k in range(len(rows))), *(f"number{k}" for k in range(len(numbers)))]
    body = "".join(f"        {line}\n" for line in lines)
    exec(f"def loop({', '.join(given)}):\n    for i in range(row0.size):\n{body}", known)
    kinds = [types.Array(types.float32, 1, "C")] * len(rows) + [types.float32] * len(numbers)
    compiled: Loop = numba.njit(
        types.void(*kinds), nogil=True, error_model="numpy", _nrt=False, no_cfunc_wrapper=True
    )(known["loop"])
    return compiled


def _term(kind: str, read: list[str]) -> str:
    """What an op makes."""
    if kind not in JOINED:
        return TERMS[kind].format(*read)
    found = read[0]
    for other in read[1:]:
        found = JOINED[kind].format(found, other)
    return found
