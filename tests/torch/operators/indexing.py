"""Elements picked and placed by index."""

from __future__ import annotations

import torch

from tests.torch.node import Node, Operator, Tensor


def _counted(index: Tensor, size: int) -> Tensor:
    """Negative indices counted from the end."""
    return torch.where(index < 0, index + size, index)


def _gather(n: Node) -> Tensor:
    x, axis = n[0], n.axis(0)
    index = _counted(n[1], x.shape[axis])
    picked = x.index_select(axis, index.reshape(-1))
    return picked.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _gather_elements(n: Node) -> Tensor:
    axis = n.axis(0)
    return n[0].gather(axis, _counted(n[1], n[0].shape[axis]))


def _places(index: Tensor, sizes: torch.Size) -> tuple[Tensor, ...]:
    """Index tuples [..., depth] as one tensor of indices per axis."""
    return tuple(_counted(index[..., k], sizes[k]) for k in range(index.shape[-1]))


def _gather_nd(n: Node) -> Tensor:
    x, index, lead = n[0], n[1], n.get("batch_dims", 0)
    if not lead:
        return x[_places(index, x.shape)]
    rows = zip(x.flatten(0, lead - 1), index.flatten(0, lead - 1), strict=True)
    picked = torch.stack([row[_places(at, row.shape)] for row, at in rows])
    return picked.reshape(*x.shape[:lead], *picked.shape[1:])


REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(n: Node) -> Tensor:
    axis, reduction = n.axis(0), n.get("reduction", "none")
    index = _counted(n[1], n[0].shape[axis])
    if reduction == "none":
        return n[0].scatter(axis, index, n[2])
    return n[0].scatter_reduce(axis, index, n[2], REDUCTIONS[reduction])


def _scatter_nd(n: Node) -> Tensor:
    places, reduction = _places(n[1], n[0].shape), n.get("reduction", "none")
    if reduction in ("none", "add"):
        return n[0].index_put(places, n[2], accumulate=reduction == "add")
    sizes = n[0].shape[: len(places)]
    rows = n[0].reshape(sizes.numel(), -1)
    flat = sum(place * sizes[k + 1 :].numel() for k, place in enumerate(places)).reshape(-1, 1)
    updates = n[2].reshape(flat.shape[0], -1)
    made = rows.scatter_reduce(0, flat.expand_as(updates), updates, REDUCTIONS[reduction])
    return made.reshape(n[0].shape)


def _one_hot(n: Node) -> Tensor:
    """values[1] where the class is the index, else values[0]."""
    depth, (off, on) = int(n[1]), n[2]
    hot = torch.nn.functional.one_hot(_counted(n[0].long(), depth), depth).movedim(
        -1, n.get("axis", -1)
    )
    return torch.where(hot.bool(), on, off)


INDEXING: dict[str, Operator] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
