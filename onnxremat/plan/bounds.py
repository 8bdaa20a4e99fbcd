"""Bounds that need no solver: what each op needs at once, and the time of running all ops."""

from __future__ import annotations

from dataclasses import dataclass

from onnxremat.plan.wiring import Wiring


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

    Its inputs, outputs and workspace, the weights, and the kept values that must already exist:
    those of its ancestors, or of all earlier ops when first runs keep the base order. The largest
    takeover that could apply is taken off.
    """
    size, fixed = wiring.size, wiring.problem.fixed
    kept = _kept_before(wiring, fixed_order)
    needed = []
    for op, (reads, writes) in enumerate(zip(wiring.reads, wiring.writes, strict=True)):
        takeover = max((size[value] for value in wiring.inplace[op]), default=0)
        present = sum(size[value] for value in reads) + sum(size[value] for value in writes)
        needed.append(fixed + wiring.work[op] + present + kept[op] - takeover)
    return needed


def largest_need(wiring: Wiring, *, fixed_order: bool = False) -> Need:
    """The op that needs most at once: no budget below it is feasible."""
    needed = needs(wiring, fixed_order=fixed_order)
    if not needed:
        return Need(wiring.problem.fixed, -1, f"{wiring.problem.fixed} bytes are always resident")
    op = max(range(len(needed)), key=needed.__getitem__)
    size = wiring.size
    parts = {
        "inputs": sum(size[value] for value in wiring.reads[op]),
        "outputs": sum(size[value] for value in wiring.writes[op]),
        "workspace": wiring.work[op],
        "always resident": wiring.problem.fixed,
    }
    parts["kept results"] = max(
        0, needed[op] - sum(parts.values()) + max((size[v] for v in wiring.inplace[op]), default=0)
    )
    text = ", ".join(f"{name} {count}" for name, count in parts.items() if count)
    if wiring.inplace[op]:
        text += ", less what its output takes over in place"
    return Need(needed[op], op, f"op {op} needs {needed[op]} bytes at once ({text})")


def _kept_before(wiring: Wiring, fixed_order: bool) -> list[int]:
    """Bytes of kept values, not read by the op, that exist when each op first runs."""
    ops, size = wiring.problem.ops, wiring.size
    total = [0] * ops
    for value, keep in enumerate(wiring.keep):
        if not keep:
            continue
        maker = wiring.producer[value]
        if fixed_order:
            for op in range(maker + 1, ops):
                total[op] += size[value]
        else:
            for op, below in enumerate(wiring.descendants(maker)):
                if below:
                    total[op] += size[value]
        for op in wiring.readers[value]:
            total[op] -= size[value]
    return total
