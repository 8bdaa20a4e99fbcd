"""Emits ops with fresh names, tracking the type and shape of everything emitted.

Shapes are numbers throughout, primes where only a run knows them (:mod:`run_sizes`). An emitted op
has by default the element type of its first input and the broadcast shape of all of them, which is
right for elementwise ops; everything else passes ``shape=`` (and ``dtype=``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.grad.lowering.two_steps import in_two_steps
from onnxremat.grad.roles import PHASE
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor, captures

T = onnx.TensorProto
Shape = tuple[int, ...]
Operand = str | float  # a tensor, or a number that becomes a constant of the other operand's type
FLOATS = frozenset({T.FLOAT, T.DOUBLE, T.FLOAT16, T.BFLOAT16})
# Elementwise ops of two operands, or three.
BROADCAST = frozenset({
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min",
    "Mul", "Or", "Sub", "Where",
})  # fmt: skip
_SHARED = 64  # constants of at most this many elements are emitted once
_MANY = 1 << 12  # elements from which an elementwise op is looked at


class Tape:
    """A growing list of ops and initializers.

    Attributes:
        ops: emitted so far, in a topological order.
        initializers: constants of the emitted ops.
        tensors: types and shapes of the forward graph and of everything emitted.
        varies: whether a number stands for a size that only a run knows, or is made of one.
        block: channels per block of the processor that it is for, 0 for any processor.
        rows_at: rows [N, D] and their indices [N], int32, by the table of their sums.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], opset: int, taken: Sequence[str], block: int = 0
    ) -> None:
        self.block = block
        self.ops: list[Op] = []
        self.initializers: list[onnx.TensorProto] = []
        self.tensors: dict[str, Tensor] = dict(tensors)
        self.opset = opset
        self.varies: Callable[[int], bool] = lambda _: False
        self.rows_at: dict[str, tuple[str, str]] = {}
        self._taken = set(taken) | set(tensors)
        self._scope, self._after = "grad", ""
        self._phase = "backward"
        self._counts: dict[str, int] = {}
        self._constants: dict[tuple[int, Shape, bytes], str] = {}
        self._numbers: dict[str, np.ndarray] = {}  # constants of one element
        self._inner: dict[str, tuple[str, str]] = {}  # products a.T @ b by their result
        self._gemms: dict[str, tuple[str, str, bool, bool, float]] = {}  # the same of Gemm

    def scratch(self) -> Tape:
        """A tape that knows the same tensors and has emitted nothing."""
        made = Tape(self.tensors, self.opset, list(self._taken), self.block)
        made.varies = self.varies
        made._constants, made._numbers = dict(self._constants), dict(self._numbers)
        return made

    @contextmanager
    def scope(self, name: str, phase: str) -> Iterator[None]:
        """Names inside begin with ``name``; nodes carry ``phase`` in their metadata."""
        outer = self._scope, self._phase
        self._scope, self._phase = name, phase
        try:
            yield
        finally:
            self._scope, self._phase = outer

    # ---- facts ---------------------------------------------------------------------------

    def shape(self, name: str) -> Shape:
        """Shape of a tensor, as numbers.

        Raises:
            KeyError: the tensor is not known, or has no known shape.
        """
        shape = self.tensors[name].shape
        if shape is None:
            raise KeyError(name)
        return shape

    def rank(self, name: str) -> int:
        """Number of dimensions."""
        return len(self.shape(name))

    def size(self, name: str) -> int:
        """Number of elements."""
        return math.prod(self.shape(name))

    def dtype(self, name: str) -> int:
        """Element type, as ``onnx.TensorProto`` numbers it."""
        return self.tensors[name].dtype

    def inside(self, after: str = "") -> Tape:
        """A tape for a body: what it emits is its own; names, tensors and constants, which bodies
        may read, are shared. Large tensors of one value are made after ``after``."""
        made = copy(self)
        made.ops, made._inner, made._gemms, made._after = [], {}, {}, after
        return made

    def declare(self, name: str, dtype: int, shape: Sequence[int] | None) -> str:
        """Make a tensor's type known (an input, an output added to a forward op); no shape is one
        that only a run knows."""
        shape = None if shape is None else tuple(int(d) for d in shape)
        size = 0 if shape is None else tensor_bytes(dtype, shape)
        self.tensors[name] = Tensor(name, dtype, shape, size, Role.ACTIVATION)
        self._taken.add(name)
        return name

    def learn(self, graph: Graph) -> None:
        """Know the ops and tensors of a graph."""
        self.tensors.update(graph.tensors)
        self._taken.update(graph.tensors, (op.name for op in graph.ops))

    def fresh(self, stem: str) -> str:
        """A name nobody has yet."""
        count = self._counts.get(stem, 0)
        while True:
            name = f"{stem}_{count}" if count else stem
            count += 1
            if name not in self._taken:
                break
        self._counts[stem] = count
        self._taken.add(name)
        return name

    # ---- constants -----------------------------------------------------------------------

    def constant(self, value: Any, dtype: int) -> str:
        """An initializer; small equal ones are shared."""
        array = np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(dtype))
        key = (dtype, array.shape, array.tobytes())
        if array.size <= _SHARED and key in self._constants:
            return self._constants[key]
        name = self.fresh("grad/constant")
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        if not array.shape:
            self.initializers[-1].ClearField("dims")
        self.declare(name, dtype, array.shape)
        self._constants[key] = name
        if array.size == 1:
            self._numbers[name] = array
        return name

    def integers(self, *values: int) -> str:
        """A one-dimensional int64 constant: axes, shapes, bounds."""
        return self.constant(np.array(values, np.int64).reshape(-1), T.INT64)

    def like(self, value: float, name: str) -> str:
        """A scalar constant of the element type of ``name``."""
        return self.constant(value, self.dtype(name))

    def zeros(self, name: str) -> str:
        """Zeros of the type and shape of a tensor."""
        return self.filled(0.0, self.shape(name), self.dtype(name))

    def filled(self, value: float, shape: Sequence[int], dtype: int) -> str:
        """A tensor of one value, made at run time so that the file does not hold it."""
        array = np.full(1, value).astype(helper.tensor_dtype_to_np_dtype(dtype))
        sizes = self.integers(*shape)
        if self._after and math.prod(shape) >= _MANY:  # onnxruntime would fold it into the body
            none = self.mul(self.op("Size", self._after, shape=(), dtype=T.INT64), 0)
            sizes = self.add(sizes, none)
        each = numpy_helper.from_array(array, "value")
        return self.op("ConstantOfShape", sizes, shape=shape, dtype=dtype, value=each)

    def op(
        self,
        op_type: str,
        *inputs: Operand,
        shape: Sequence[int] | None = None,
        dtype: int | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Emit an op with one output and return its name."""
        names = self._operands(inputs)
        if shape is None:
            known = [self.shape(name) for name in names if name]
            shape = known[0] if len(known) == 1 else np.broadcast_shapes(*known)
        if op_type in BROADCAST and not domain:
            names = self._widened(names, shape)
        kind = self.dtype(next(n for n in names if n)) if dtype is None else dtype
        return self.multi(op_type, names, [(kind, shape)], domain=domain, **attributes)[0]

    def multi(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[tuple[int, Sequence[int]]],
        *,
        domain: str = "",
        name: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Emit an op with several outputs, each given by element type and shape."""
        name = name or self.fresh(f"{self._scope}/{op_type}")
        made = [
            self.fresh(f"{name}_out" if k == 0 else f"{name}_out{k}") for k in range(len(outputs))
        ]
        for result, (dtype, shape) in zip(made, outputs, strict=True):
            self.declare(result, dtype, shape)
        kept = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op_type, inputs, made, name=name, domain=domain, **kept)
        node.metadata_props.add(key=PHASE, value=self._phase)
        read = captures(node)
        self.ops.append(Op(name, op_type, domain, tuple(inputs), tuple(made), read, node))
        return tuple(made)

    def _operands(self, inputs: Sequence[Operand]) -> list[str]:
        first = next(value for value in inputs if isinstance(value, str) and value)
        return [value if isinstance(value, str) else self.like(value, first) for value in inputs]

    def _widened(self, names: list[str], shape: Sequence[int]) -> list[str]:
        """Operands of an elementwise op, single numbers with as many axes as the result where its
        last one has length 1. With fewer, onnxruntime (1.31) goes from element to element, which
        takes 70 times as long: filters of 1x1 convolutions times a rate."""
        if not shape or shape[-1] != 1 or math.prod(shape) < _MANY:
            return names
        wide = (1,) * len(shape)
        return [self._wide(n, wide) if n and self.size(n) == 1 else n for n in names]

    def _wide(self, number: str, shape: Shape) -> str:
        if number in self._numbers:
            return self.constant(self._numbers[number].reshape(shape), self.dtype(number))
        return self.reshape(number, shape)

    # ---- arithmetic ----------------------------------------------------------------------

    def add(self, a: Operand, b: Operand) -> str:
        """a + b."""
        return self.op("Add", a, b)

    def sub(self, a: Operand, b: Operand) -> str:
        """a - b."""
        return self.op("Sub", a, b)

    def mul(self, a: Operand, b: Operand) -> str:
        """a * b; a factor of 1 emits nothing."""
        if isinstance(b, str) and not isinstance(a, str):
            a, b = b, a
        if not isinstance(b, str) and b == 1.0 and isinstance(a, str):
            return a
        return self.op("Mul", a, b)

    def div(self, a: Operand, b: Operand) -> str:
        """a / b."""
        return self.op("Div", a, b)

    def neg(self, a: str) -> str:
        """-a."""
        return self.op("Neg", a)

    def exp(self, a: str) -> str:
        """e ** a."""
        return self.op("Exp", a)

    def reciprocal_sqrt(self, a: str) -> str:
        """1 / sqrt(a)."""
        return self.op("Reciprocal", self.op("Sqrt", a))

    # ---- comparison ----------------------------------------------------------------------

    def compare(self, op_type: str, a: Operand, b: Operand) -> str:
        """A boolean tensor: Greater, Less, Equal, ..."""
        return self.op(op_type, a, b, dtype=T.BOOL)

    def cast(self, a: str, dtype: int) -> str:
        """To another element type; nothing is emitted when it has it already."""
        if self.dtype(a) == dtype:
            return a
        return self.op("Cast", a, dtype=dtype, to=dtype)

    def mask(self, condition: str, value: str) -> str:
        """``value`` where the condition holds, else 0. A product with the cast condition: the
        CPU kernel of Where is slower, and the difference shows only for infinite values."""
        return self.mul(value, self.cast(condition, self.dtype(value)))

    def where(self, condition: str, a: Operand, b: Operand) -> str:
        """Elementwise choice."""
        typed = a if isinstance(a, str) else b
        if not isinstance(typed, str):
            raise TypeError("where needs a tensor to take the element type from")
        left = a if isinstance(a, str) else self.like(a, typed)
        right = b if isinstance(b, str) else self.like(b, typed)
        return self.op("Where", condition, left, right, dtype=self.dtype(typed))

    # ---- shape ---------------------------------------------------------------------------

    def reshape(self, a: str, shape: Sequence[int]) -> str:
        """The same elements in another shape; nothing is emitted when it has it already."""
        shape = tuple(int(d) for d in shape)
        if self.shape(a) == shape:
            return a
        # A zero in the target would mean "copy the dimension"; empty tensors need it literally.
        zero = 1 if 0 in shape else None
        return self.op("Reshape", a, self.integers(*shape), shape=shape, allowzero=zero)

    def later(self, a: str, after: str) -> str:
        """``a``, but not available before ``after`` is made; no element is moved.

        What is computed again from the forward pass alone is ready at once, and onnxruntime would
        run it early and keep the result. The Reshape is to zeros, which stand for the sizes as
        they are; they come from the size of ``after``, which onnxruntime does not fold.
        """
        if not self.rank(a):
            return a
        size = self.op("Size", after, shape=(), dtype=T.INT64)
        zeros = self.integers(*[0] * self.rank(a))
        same = self.op("Mul", size, zeros, shape=(self.rank(a),), dtype=T.INT64)
        return self.op("Reshape", a, same, shape=self.shape(a))

    def transpose(self, a: str, perm: Sequence[int]) -> str:
        """Axes in another order; a Reshape where only axes of length 1 move."""
        perm = tuple(int(p) for p in perm)
        if a in self._inner and perm[-2:] != (len(perm) - 2, len(perm) - 1):
            a, perm = self._product_transposed(a, perm)
        if a in self._gemms and perm == (1, 0):  # not a second matrix, as large, of the first
            left, right, ta, tb, alpha = self._gemms[a]
            return self.gemm(right, left, ta=not tb, tb=not ta, alpha=alpha)
        old = self.shape(a)
        shape = tuple(old[p] for p in perm)
        moving = [p for p in perm if old[p] != 1]
        if moving == sorted(moving):
            return self.reshape(a, shape)
        return self.op("Transpose", a, shape=shape, perm=perm)

    def expand(self, a: str, shape: Sequence[int]) -> str:
        """Broadcast to a shape."""
        shape = tuple(int(d) for d in shape)
        if self.shape(a) == shape:
            return a
        return self.op("Expand", a, self.integers(*shape), shape=shape)

    def pad(self, a: str, before: Sequence[int], after: Sequence[int]) -> str:
        """Zeros around; negative counts crop."""
        sides = list(zip(before, after, strict=True))
        axes = [axis for axis, side in enumerate(sides) if min(side) < 0]
        if axes:
            starts = [max(0, -before[axis]) for axis in axes]
            ends = [self.shape(a)[axis] - max(0, -after[axis]) for axis in axes]
            a = self.slice(a, axes, starts, ends)
        before, after = [max(0, p) for p in before], [max(0, q) for q in after]
        if not any(before) and not any(after):
            return a
        shape = [d + p + q for d, p, q in zip(self.shape(a), before, after, strict=True)]
        return self.op("Pad", a, self.integers(*before, *after), shape=shape)

    def slice(
        self,
        a: str,
        axes: Sequence[int],
        starts: Sequence[int],
        ends: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> str:
        """A part; nothing is emitted where it is the whole."""
        shape = list(self.shape(a))
        steps = [1] * len(axes) if steps is None else steps
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            shape[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
        if tuple(shape) == self.shape(a) and all(step == 1 for step in steps):
            return a
        bounds = [self.integers(*starts), self.integers(*ends), self.integers(*axes)]
        if any(step != 1 for step in steps):
            bounds.append(self.integers(*steps))
        return self.op("Slice", a, *bounds, shape=shape)

    def reversed(self, a: str, axes: Sequence[int]) -> str:
        """Order of elements along axes reversed."""
        axes = [axis for axis in axes if self.shape(a)[axis] > 1]
        if not axes:
            return a
        n = len(axes)
        bounds = [(-1,) * n, (-(2**31),) * n, axes, (-1,) * n]
        rows = [self.integers(*bound) for bound in bounds]
        return self.op("Slice", a, *rows, shape=self.shape(a))

    def concat(self, parts: Sequence[str], axis: int) -> str:
        """Parts side by side."""
        if len(parts) == 1:
            return parts[0]
        shape = list(self.shape(parts[0]))
        shape[axis] = sum(self.shape(part)[axis] for part in parts)
        return self.op("Concat", *parts, shape=shape, axis=axis)

    # ---- reductions and products ---------------------------------------------------------

    def reduce(self, kind: str, a: str, axes: Sequence[int], keep: bool = False) -> str:
        """ReduceSum, ReduceMean, ... (``kind`` without "Reduce") over axes."""
        old = self.shape(a)
        axes = sorted(axis % len(old) for axis in axes) if old else []
        if not axes:
            return a
        shape = [1 if i in axes else d for i, d in enumerate(old) if keep or i not in axes]
        if all(old[axis] == 1 for axis in axes) and kind in ("Sum", "Mean", "Max", "Min"):
            return self.reshape(a, shape)
        return self.op(f"Reduce{kind}", a, self.integers(*axes), shape=shape, keepdims=int(keep))

    def sum(self, a: str, axes: Sequence[int], keep: bool = False) -> str:
        """Sum over axes; a large one over the first axes in two steps, which the CPU kernels share
        among threads better (sums of rows) or read memory faster for (sums per channel)."""
        shape = self.shape(a)
        axes = sorted(axis % len(shape) for axis in axes) if shape else []
        view = in_two_steps(shape, axes)
        if view is None:
            return self.reduce("Sum", a, axes, keep)
        parts = self.reduce("Sum", self.reshape(a, view[0]), [view[1]])
        kept = [
            1 if axis in axes else d for axis, d in enumerate(shape) if keep or axis not in axes
        ]
        return self.reshape(self.reduce("Sum", parts, [0]), kept)

    def mean(self, a: str, axes: Sequence[int], keep: bool = True) -> str:
        """Mean over axes."""
        return self.reduce("Mean", a, axes, keep)

    def unbroadcast(self, a: str, shape: Sequence[int]) -> str:
        """The cotangent of a tensor of ``shape`` that was broadcast to the shape of ``a``."""
        big, small = self.shape(a), tuple(int(d) for d in shape)
        if big == small:
            return a
        lead = len(big) - len(small)
        axes = [*range(lead)]
        within = range(max(lead, 0), len(big))  # a list of one may have been read as a number
        axes += [i for i in within if small[i - lead] == 1 and big[i] != 1]
        return self.reshape(self.sum(a, axes, keep=True), small)

    def matmul(self, a: str, b: str) -> str:
        """Matrix product over the last two axes, broadcast over the others."""
        left, right = self.shape(a), self.shape(b)
        lead = np.broadcast_shapes(left[:-2], right[:-2])
        return self.op("MatMul", a, b, shape=(*lead, left[-2], right[-1]))

    def gemm(
        self, a: str, b: str, *, ta: bool = False, tb: bool = False, alpha: float = 1.0
    ) -> str:
        """alpha * op(a) @ op(b) of two matrices."""
        rows = self.shape(a)[1 if ta else 0]
        columns = self.shape(b)[0 if tb else 1]
        factor = None if alpha == 1.0 else float(alpha)
        made = self.op(
            "Gemm", a, b, shape=(rows, columns), transA=int(ta), transB=int(tb), alpha=factor
        )
        self._gemms[made] = a, b, ta, tb, alpha
        return made

    def inner(self, a: str, b: str) -> str:
        """Transpose of ``a`` times ``b``, matrices of the last two axes with equal axes before."""
        x, y = self._apart(a), self._apart(b)
        made = self.matmul(self.swap_last(x), y)
        made = self.reshape(made, (*self.shape(a)[:-2], self.shape(a)[-1], self.shape(b)[-1]))
        self._inner[made] = a, b
        return made

    def outer(self, a: str, b: str) -> str:
        """``a`` times the transpose of ``b``: matrices of the last two axes, equal axes before."""
        made = self.matmul(self._apart(a), self.swap_last(self._apart(b)))
        return self.reshape(made, (*self.shape(a)[:-1], self.shape(b)[-2]))

    def _apart(self, a: str) -> str:
        """A factor with its first axes seen as one (or one more): onnxruntime fuses a transpose of
        the last two axes into the product, unless it first merges it with a Transpose before it,
        and it does not look for one through a Reshape."""
        shape = self.shape(a)
        lead = (1, shape[0]) if len(shape) == 3 else (math.prod(shape[:-2]),)
        return self.reshape(a, (*lead, *shape[-2:]))

    def _product_transposed(self, product: str, perm: Shape) -> tuple[str, Shape]:
        """A product that is to be permuted, made with rows and columns exchanged where the
        permutation then leaves the last axis alone and so moves whole runs of memory."""
        n = len(perm)
        exchanged = tuple({n - 1: n - 2, n - 2: n - 1}.get(axis, axis) for axis in perm)
        if exchanged[-1] != n - 1:
            return product, perm
        a, b = self._inner[product]
        return self.inner(b, a), exchanged

    def swap_last(self, a: str) -> str:
        """Transpose of the last two axes."""
        n = self.rank(a)
        return self.transpose(a, (*range(n - 2), n - 1, n - 2))
