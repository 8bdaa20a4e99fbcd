"""Which tensors a run would read after their memory holds something else.

Who trains gives an input and the output with its new value one buffer. Whatever makes that right
(updates that wait, a pinned order), this looks at the graph alone: does every reader of the old
value run before the new one is made?
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxremat.graph.axes import row_of
from onnxremat.graph.axis_products import pointwise
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import MOVING, SIZES, is_alias, takeover_inputs

_SCALING = frozenset({"Mul", "Div"})
Readers = Mapping[str, Sequence[int]]  # indices of ops by old value


@dataclass(frozen=True)
class Late:
    """A read that may find the new value.

    Attributes:
        old: the tensor that is written over.
        reader: the op that reads it, or a view of it.
        writer: the op that makes the new value.
    """

    old: str
    reader: str
    writer: str


def late_in_any_order(
    ops: Sequence[Op], shared: Mapping[str, str], known: Iterable[str]
) -> list[Late]:
    """Reads that the new value does not depend on, so that a runtime may put them after it.

    Args:
        ops: in a topological order.
        shared: old value to the new one in the same buffer.
        known: tensors that are constant.
    """
    return _late(ops, shared, readers_once_fused(ops, shared, known), listed=False)


def late_as_listed(ops: Sequence[Op], shared: Mapping[str, str]) -> list[Late]:
    """Reads that come after the new value where ops run one by one as they are listed, and nothing
    is fused."""
    return _late(ops, shared, readers_of_views(ops, shared), listed=True)


def readers_of_views(ops: Sequence[Op], olds: Collection[str]) -> dict[str, list[int]]:
    """Ops that read each of the tensors, or its memory as another shape. An If, Loop or Scan reads
    what its bodies capture; a Shape or Size, as of pins, reads no element."""
    source = {name: name for name in olds}
    found: dict[str, list[int]] = {name: [] for name in olds}
    for index, op in enumerate(ops):
        if op.op_type in SIZES:
            continue
        for old in dict.fromkeys(source[name] for name in op.reads if name in source):
            found[old].append(index)
        if is_alias(op) and op.inputs[0] in source:
            source.update(dict.fromkeys(op.writes, source[op.inputs[0]]))
    return found


def readers_once_fused(
    ops: Sequence[Op], shared: Mapping[str, str], known: Iterable[str]
) -> dict[str, list[int]]:
    """Ops that read each old value, or what is moved from it (a Transpose) or a constant multiple
    of it, which onnxruntime fuses into the op that reads that."""
    constant = set(known)
    source = {name: name for name in shared}
    new = {*shared.values()}  # which may be read at any time
    found: dict[str, list[int]] = {name: [] for name in shared}
    for index, op in enumerate(ops):
        read = [name for name in op.reads if name not in constant]
        if op.op_type in SIZES or not read:
            constant.update(op.writes)
            continue
        olds = {source.get(name, "") for name in read}
        for old in olds - {""}:
            found[old].append(index)
        made_of = source.get(op.inputs[0], "") if op.op_type in MOVING else ""
        if op.op_type in _SCALING and len(olds) == 1:
            made_of = olds.pop()
        if made_of:
            source.update((name, made_of) for name in op.writes if name not in new)
    return found


def _late(
    ops: Sequence[Op], shared: Mapping[str, str], readers: Readers, *, listed: bool
) -> list[Late]:
    makers = {name: index for index, op in enumerate(ops) for name in op.writes}
    writers = {old: makers[new] for old, new in shared.items() if new in makers}
    asked: dict[int, set[int]] = {}
    for old, at in writers.items():
        asked.setdefault(at, set()).update(readers[old])
    before = {} if listed else _before(ops, makers, asked)
    found = []
    for old, at in writers.items():
        for index in readers[old]:
            if index == at:
                fine = old not in ops[at].reads or _may_write_over(ops[at], old)
            else:
                fine = index < at if listed else index in before[at]
            if not fine:
                found.append(Late(old, ops[index].name, ops[at].name))
    return found


def _may_write_over(op: Op, old: str) -> bool:
    """The kernel may be given one buffer for this input and its output: each element depends on
    that element alone, or it begins with a copy of the input (what a product is added to)."""
    row, takes = row_of(op), {*takeover_inputs(op)}
    if op.op_type in ("Gemm", "FusedGemm"):
        takes.add(2)
    if row is not None and row.rule is pointwise:
        return True
    return all(k in takes for k, name in enumerate(op.inputs) if name == old)


def _before(
    ops: Sequence[Op], makers: Mapping[str, int], asked: Mapping[int, Collection[int]]
) -> dict[int, set[int]]:
    """Of the readers that are asked for with each op those that it depends on."""
    bit = {index: k for k, index in enumerate(sorted({i for each in asked.values() for i in each}))}
    needs = [{makers[name] for name in op.reads if name in makers} for op in ops]
    last = {maker: index for index, each in enumerate(needs) for maker in each}
    masks: dict[int, int] = {}  # until the last op that needs it
    found: dict[int, set[int]] = {}
    for index, each in enumerate(needs):
        mask = 1 << bit[index] if index in bit else 0
        for maker in each:
            mask |= masks[maker] if last[maker] > index else masks.pop(maker)
        masks[index] = mask
        if index in asked:
            found[index] = {reader for reader in asked[index] if mask >> bit[reader] & 1}
    return found
