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
from onnxremat.graph.traits import MOVING, is_alias

_SIZES = frozenset({"Shape", "Size"})
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
    what its bodies capture."""
    source = {name: name for name in olds}
    found: dict[str, list[int]] = {name: [] for name in olds}
    for index, op in enumerate(ops):
        for old in dict.fromkeys(source[name] for name in op.reads if name in source):
            found[old].append(index)
        if is_alias(op) and op.inputs[0] in source:
            source.update(dict.fromkeys(op.writes, source[op.inputs[0]]))
    return found


def readers_once_fused(
    ops: Sequence[Op], shared: Mapping[str, str], known: Iterable[str]
) -> dict[str, list[int]]:
    """Ops that read each old value, or what it alone and constants enter (a Transpose, a multiple),
    which a runtime may fuse into the op that reads that."""
    constant = set(known)
    source = {name: name for name in shared}
    new = {*shared.values()}  # which may be read at any time
    found: dict[str, list[int]] = {name: [] for name in shared}
    for index, op in enumerate(ops):
        read = [name for name in op.reads if name not in constant]
        if op.op_type in _SIZES or not read:
            constant.update(op.writes)
            continue
        olds = {source.get(name, "") for name in read}
        for old in olds - {""}:
            found[old].append(index)
        moved = source.get(op.inputs[0], "") if op.op_type in MOVING else ""
        made_of = moved or (olds.pop() if len(olds) == 1 else "")
        if made_of:
            source.update((name, made_of) for name in op.writes if name not in new)
    return found


def _late(
    ops: Sequence[Op], shared: Mapping[str, str], readers: Readers, *, listed: bool
) -> list[Late]:
    makers = {name: index for index, op in enumerate(ops) for name in op.writes}
    writers = {old: makers[new] for old, new in shared.items() if new in makers}
    before = {} if listed else _before(ops, makers, readers, {*writers.values()})
    found = []
    for old, at in writers.items():
        for index in readers[old]:
            if index == at:
                fine = old not in ops[at].reads or _each_alone(ops[at])
            else:
                fine = index < at if listed else index in before[at]
            if not fine:
                found.append(Late(old, ops[index].name, ops[at].name))
    return found


def _each_alone(op: Op) -> bool:
    """Each element of the output depends on one element of each input: a kernel may write over
    what it reads."""
    row = row_of(op)
    return row is not None and row.rule is pointwise


def _before(
    ops: Sequence[Op], makers: Mapping[str, int], readers: Readers, wanted: Collection[int]
) -> dict[int, set[int]]:
    """Of each wanted op the readers that it depends on."""
    bit = {
        index: k for k, index in enumerate(sorted({i for each in readers.values() for i in each}))
    }
    needs = [{makers[name] for name in op.reads if name in makers} for op in ops]
    last = {maker: index for index, each in enumerate(needs) for maker in each}
    masks: dict[int, int] = {}  # until the last op that needs it
    found: dict[int, set[int]] = {}
    for index, each in enumerate(needs):
        mask = 1 << bit[index] if index in bit else 0
        for maker in each:
            mask |= masks[maker] if last[maker] > index else masks.pop(maker)
        masks[index] = mask
        if index in wanted:
            found[index] = {reader for reader, k in bit.items() if mask >> k & 1}
    return found
