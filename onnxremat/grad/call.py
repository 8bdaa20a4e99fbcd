"""What a rule is given: one forward node, its tensors and the cotangents of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad.registry import missing_rule
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.ort.computed_sizes import is_misinferred

if TYPE_CHECKING:
    from onnxremat.grad.engine import Walk


@dataclass
class Call:
    """One application of a rule.

    Attributes:
        op: the forward op.
        tape: where to emit, and the shapes of all tensors.
        cotangents: one per output, None where the loss does not depend on the output.
        needs: one per input, whether its cotangent is wanted; then one per tensor that bodies
            read.
        version: opset version of the op's domain.
        constant_of: value of a tensor that is known before the run, else None.
        add_output: asks the forward op for a further output, see :meth:`extra`.
        walk: that the call is part of; walks over bodies come of it.
    """

    op: Op
    tape: Tape
    cotangents: tuple[str | None, ...]
    needs: tuple[bool, ...]
    version: int
    constant_of: Callable[[str], np.ndarray | None]
    add_output: Callable[[Op, int, int, Shape | None], str]
    walk: Walk

    @property
    def x(self) -> str:
        """The first input."""
        return self.op.inputs[0]

    @property
    def y(self) -> str:
        """The first output."""
        return self.op.outputs[0]

    @property
    def dy(self) -> str:
        """Cotangent of the first output, for rules that know of no other.

        Raises:
            UnsupportedError: another output leads to the loss.
        """
        if self.cotangents[0] is None or any(self.cotangents[1:]):
            raise self.unsupported("an output other than the first leads to the loss")
        return self.cotangents[0]

    def input(self, position: int) -> str | None:
        """An input, None when absent."""
        inputs = self.op.inputs
        return inputs[position] if position < len(inputs) and inputs[position] else None

    def need(self, position: int) -> bool:
        """Whether the cotangent of an input is wanted."""
        return position < len(self.needs) and self.needs[position]

    def shape(self, position: int = 0) -> Shape:
        """Shape of an input."""
        return self.tape.shape(self.op.inputs[position])

    @property
    def out_shape(self) -> Shape:
        """Shape of the first output."""
        return self.tape.shape(self.y)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute; strings come decoded, sequences as lists.

        Raises:
            UnsupportedError: it is no number, and ``default`` is one.
        """
        for attribute in self.op.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                if isinstance(default, int | float) and not isinstance(value, int | float):
                    raise self.unsupported(f"its attribute '{name}' is no number")
                if isinstance(value, bytes):
                    return value.decode()
                return list(value) if isinstance(value, Sequence) else value
        return default

    def value(self, position: int) -> np.ndarray:
        """Value of an input that the rule must know before the run.

        Raises:
            UnsupportedError: it is computed at run time.
        """
        name = self.input(position)
        value = None if name is None else self.constant_of(name)
        if value is None:
            raise self.unsupported(f"input {position} is not known before the run")
        return value

    def optional_value(self, position: int) -> np.ndarray | None:
        """Value of an input, None when it is absent or computed at run time."""
        name = self.input(position)
        return None if name is None else self.constant_of(name)

    def extra(self, position: int, dtype: int, shape: Shape | None) -> str:
        """Output ``position`` of the forward op, which is made to write it if it does not yet; of
        no shape where only a run knows it."""
        return self.add_output(self.op, position, dtype, shape)

    def only(self, cotangent: str | None, position: int = 0) -> list[str | None]:
        """Cotangents of all inputs when only one of them has one."""
        return [cotangent if i == position else None for i in range(len(self.op.operands))]

    def require_inferred(self) -> None:
        """Raises:
        UnsupportedError: onnxruntime infers another shape than the op makes.
        """
        given = {n: (self.tape.dtype(n), self.tape.shape(n)) for n in self.op.reads}
        node = helper.make_node(self.op.op_type, self.op.inputs, self.op.outputs)
        node.attribute.extend(self.op.node.attribute)
        if is_misinferred(node, self.version, given, self.out_shape):
            raise self.unsupported(
                f"onnxruntime infers another shape of its result than {list(self.out_shape)}, "
                "which it has in a run, and opens no step in which both meet"
            )

    def unsupported(self, why: str) -> UnsupportedError:
        """The error for a node that the rule cannot differentiate."""
        return missing_rule(self.op, self.version, why)
