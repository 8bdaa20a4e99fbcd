"""Bounds that need no solver: what each op needs at once, and the time of running all ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnxremat.planner.reasons import Reason
from onnxremat.planner.wiring import Wiring


@dataclass(frozen=True)
class Need:
    """Bytes that must be in memory at once while ``op`` runs, in any sequence."""

    bytes: int
    op: int
    why: str


def least_time(wiring: Wiring) -> float:
    """Seconds of running every op once: no sequence takes less."""
    return sum(wiring.cost)


def needs(wiring: Wiring, *, fixed_order: bool = False) -> list[int]:
    """Bytes the first run of each op takes in every valid sequence, shape (ops,).

    Its inputs, outputs and workspace, the weights, and the values that must be in memory besides:
    kept values made before, and values that cannot be remade, were made before and are read later.
    Before and later mean by dependency, or in the base order when first runs keep it. The largest
    takeover that could apply is taken off.
    """
    size, fixed = wiring.size, wiring.problem.fixed
    beside = _beside(wiring, fixed_order)
    needed = []
    for op, (reads, writes) in enumerate(zip(wiring.reads, wiring.writes, strict=True)):
        present = sum(size[value] for value in reads) + sum(size[value] for value in writes)
        takeover = _takeover(wiring, op, fixed_order)
        needed.append(fixed + wiring.work[op] + present + beside[op] - takeover)
    return needed


def largest_need(wiring: Wiring, *, fixed_order: bool = False) -> Need:
    """The op that needs most at once: no budget below it is feasible."""
    needed = needs(wiring, fixed_order=fixed_order)
    if not needed:
        return Need(wiring.problem.fixed, -1, f"{wiring.problem.fixed} bytes are always resident")
    op = max(range(len(needed)), key=needed.__getitem__)
    together = _all_results(wiring, fixed_order)
    if together is not None and together.bytes > needed[op]:
        return together
    size = wiring.size
    parts = {
        "inputs": sum(size[value] for value in wiring.reads[op]),
        "outputs": sum(size[value] for value in wiring.writes[op]),
        "workspace": wiring.work[op],
        "always resident": wiring.problem.fixed,
    }
    takeover = _takeover(wiring, op, fixed_order)
    parts["results and values that cannot be remade"] = needed[op] - sum(parts.values()) + takeover
    text = ", ".join(f"{name} {count}" for name, count in parts.items() if count)
    if takeover:
        text += f", less {takeover} that its output takes over in place"
    return Need(needed[op], op, Reason(f"{{op}} needs {needed[op]} bytes at once ({text})", op))


def _all_results(wiring: Wiring, fixed_order: bool) -> Need | None:
    """Bytes at the step that makes the last of the kept values: all of them, and what it needs."""
    size, keep = wiring.size, wiring.keep
    makers = sorted({wiring.producer[value] for value, flag in enumerate(keep) if flag})
    if not makers:
        return None
    kept = sum(bytes_ for bytes_, flag in zip(size, keep, strict=True) if flag)

    def total(op: int) -> int:
        around = {*wiring.reads[op], *wiring.writes[op]}
        besides = sum(size[value] for value in around if not keep[value])
        takeover = _takeover(wiring, op, fixed_order)
        return wiring.problem.fixed + kept + besides + wiring.work[op] - takeover

    last = makers[-1] if fixed_order else min(makers, key=total)
    why = (
        f"all kept results are in memory at the end: {total(last)} bytes with what {{op}}, "
        "the cheapest to make the last of them, needs besides"
    )
    return Need(total(last), last, Reason(why, last))


def _takeover(wiring: Wiring, op: int, fixed_order: bool) -> int:
    """Bytes the output of ``op`` can take over at most at its first run."""
    free = [v for v in wiring.inplace[op] if not _read_later(wiring, v, op, fixed_order)]
    return max((wiring.size[value] for value in free), default=0)


def _read_later(wiring: Wiring, value: int, op: int, fixed_order: bool) -> bool:
    """True when ``value`` cannot be remade and is read after ``op`` in every sequence."""
    if wiring.recomputable[wiring.producer[value]]:
        return False
    others = [reader for reader in wiring.readers[value] if reader != op]
    if fixed_order:
        return any(reader > op for reader in others)
    return bool(others) and not wiring.descendant_ops(op).isdisjoint(others)


def _beside(wiring: Wiring, fixed_order: bool) -> list[int]:
    """Bytes in memory at the first run of each op besides its inputs and outputs."""
    total = [0] * wiring.problem.ops
    for value, size in enumerate(wiring.size):
        readers = set(wiring.readers[value])
        for op in _spanned(wiring, value, fixed_order):
            if op not in readers:
                total[op] += size
    return total


def _spanned(wiring: Wiring, value: int, fixed_order: bool) -> Iterable[int]:
    """Ops at whose first run ``value`` must be in memory whatever is recomputed."""
    maker, readers, ops = wiring.producer[value], wiring.readers[value], wiring.problem.ops
    if wiring.keep[value]:
        return range(maker + 1, ops) if fixed_order else wiring.descendant_ops(maker)
    if wiring.recomputable[maker] or not readers:
        return ()
    if fixed_order:
        return range(maker + 1, readers[-1] + 1)
    if len(readers) == 1 and wiring.before[readers[0]] == [maker]:
        return ()
    above = set[int]().union(*(wiring.ancestor_ops(reader) for reader in readers))
    return above & wiring.descendant_ops(maker)
