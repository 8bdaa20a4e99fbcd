"""Operators that move elements: shapes, slices, gathering, scattering."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz_nodes.draw import Array, Draw, Node, draws, wholes


@draws("Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile")
def view(d: Draw, op: str) -> Node:
    shape = d.shape()
    rank, x = len(shape), d.normal(*shape)
    if op == "Flatten":
        return Node(op, [x], {"axis": d.whole(-rank, rank)}, d.of((11, 13)))
    if op == "Transpose":
        order = d.random.sample(range(rank), rank)
        return Node(op, [x], {"perm": order} if d.chance(0.8) else {}, 13)
    if op == "Squeeze":
        ones = [k for k in range(rank) if d.chance(0.4)]
        x = d.normal(*(1 if k in ones else size for k, size in enumerate(shape)))
        axes = wholes(*(d.spelled(k, rank) for k in ones)) if ones and d.chance(0.7) else None
        return Node(op, [x, axes], {}, 13, fixed=[1])
    if op == "Unsqueeze":
        more = d.whole(1, 2)
        axes = d.random.sample(range(rank + more), more)
        return Node(op, [x, wholes(*(d.spelled(a, rank + more) for a in axes))], {}, 13, fixed=[1])
    if op == "Tile":
        return Node(op, [x, wholes(*(d.of((1, 1, 2, 3, 0)) for _ in shape))], {}, 13, fixed=[1])
    if op == "Expand":
        wide = [d.of((size, 1)) if size > 1 else d.whole(1, 3) for size in shape]
        wide = [*d.shape(1, 3, 0, 2), *wide] if d.chance(0.5) else wide[d.whole(0, rank - 1) :]
        return Node(op, [x, wholes(*wide)], {}, 13, fixed=[1])
    return _reshape(d, op, x)


def _reshape(d: Draw, op: str, x: Array) -> Node:
    whole, wanted = x.size, list[int]()
    while whole > 1 and len(wanted) < 3:
        wanted.append(d.of([k for k in range(1, whole + 1) if whole % k == 0]))
        whole //= wanted[-1]
    wanted.append(whole)
    d.random.shuffle(wanted)
    if d.chance(0.4):
        wanted[d.whole(0, len(wanted) - 1)] = -1
    for k in range(min(len(wanted), x.ndim)):
        if wanted[k] == x.shape[k] and d.chance(0.5):
            wanted[k] = 0
    return Node(op, [x, wholes(*wanted)], {}, d.of((13, 14, 19)), fixed=[1])


@draws("Pad")
def pad(d: Draw, op: str) -> Node:
    shape = d.shape(2, 5)
    opset = d.of((11, 18, 19, 21))
    mode = d.word("constant reflect edge wrap" if opset >= 19 else "constant reflect edge")
    axes, many = None, len(shape)
    if opset >= 18 and d.chance(0.3):
        axes = d.axes(len(shape))
        many = len(axes)
        axes = wholes(*(d.spelled(a, len(shape)) for a in axes))
    value = d.normal() if mode == "constant" and d.chance(0.5) else None
    counts = wholes(*d.wholes(-1, 2, 2 * many))
    return Node(op, [d.normal(*shape), counts, value, axes], {"mode": mode}, opset, fixed=[1, 3])


@draws("Slice")
def part(d: Draw, op: str) -> Node:
    shape = d.shape(1, 6)
    rows = []
    for axis in d.axes(len(shape)):
        size, step = shape[axis], d.of((1, 1, 2, 3, -1, -2, -3))
        end = d.whole(-size - 2, size + 2)
        far = (-(2**31), -(2**63)) if step < 0 else (2**31 - 1, 2**63 - 1)
        end = d.of((end, *far))
        rows.append((d.whole(-size - 2, size + 2), end, d.spelled(axis, len(shape)), step))
    kind = np.int64
    if all(abs(end) < 2**31 for _, end, _, _ in rows) and d.chance(0.3):
        kind = np.int32
    columns = [np.array(column, kind) for column in zip(*rows, strict=True)]
    return Node(op, [d.normal(*shape), *columns], {}, d.of((11, 13)))


@draws("Concat Split")
def joined(d: Draw, op: str) -> Node:
    shape = d.shape()
    axis = d.whole(0, len(shape) - 1)
    spelled = {"axis": d.spelled(axis, len(shape))}
    if op == "Concat":
        parts = []
        for _ in range(d.whole(1, 3)):
            sizes = list(shape)
            sizes[axis] = d.of((0, 1, 1, 2, 3))
            parts.append(d.normal(*sizes))
        return Node(op, parts, spelled, 13)
    size, x = shape[axis], d.normal(*shape)
    if d.chance(0.5):
        first = d.whole(0, size)
        return Node(op, [x, wholes(first, size - first)], spelled, 18, 2, fixed=[1])
    many = d.whole(1, size)
    if d.chance(0.3) and size % many == 0:
        return Node(op, [x], spelled, 13, many)
    return Node(op, [x], {**spelled, "num_outputs": many}, 18, many)


@draws("Trilu ReverseSequence OneHot")
def corner(d: Draw, op: str) -> Node:
    if op == "Trilu":
        k = np.array(d.whole(-4, 4), np.int64) if d.chance(0.7) else None
        return Node(op, [d.normal(*d.shape(least=2)), k], d.some(upper=d.whole(0, 1)), 14)
    if op == "OneHot":
        places = d.indices(-3, 3, d.shape(high=3, most=2))
        axis = d.spelled(d.whole(0, places.ndim), places.ndim + 1)
        inputs = [places, np.array(3, np.int64), d.normal(2)]
        return Node(op, inputs, d.some(axis=axis), 11, fixed=[1])
    x, time = d.normal(*d.shape(most=2, least=2), *d.shape(high=2, least=0, most=1)), d.whole(0, 1)
    lengths = d.indices(1, x.shape[time] + 1, (x.shape[1 - time],))
    return Node(op, [x, lengths], {"time_axis": time, "batch_axis": 1 - time}, 10)


@draws("Gather GatherElements GatherND")
def gather(d: Draw, op: str) -> Node:
    shape = d.shape(1, 5)
    axis = d.whole(0, len(shape) - 1)
    size, spelled = shape[axis], {"axis": d.spelled(axis, len(shape))}
    if op == "Gather":
        places = d.indices(-size, size, d.shape(least=0, most=3))
        return Node(op, [d.normal(*shape), places.astype(d.of((np.int64, np.int32)))], spelled, 13)
    if op == "GatherElements":
        sizes = [d.whole(1, each) for each in shape]
        sizes[axis] = d.whole(1, 6)
        return Node(op, [d.normal(*shape), d.indices(-size, size, sizes)], spelled, 13)
    batch = d.whole(0, 2)
    shape = d.shape(1, 4, batch + 1, batch + 3)
    deep = d.whole(1, len(shape) - batch)
    lead = (*shape[:batch], *d.shape(high=3, least=0, most=2))
    columns = [d.indices(-size, size, lead) for size in shape[batch : batch + deep]]
    return Node(op, [d.normal(*shape), np.stack(columns, -1)], {"batch_dims": batch}, 13)


REDUCED = "none add mul max min"


@draws("ScatterElements")
def scatter(d: Draw, op: str) -> Node:
    shape = d.shape(1, 5, most=3)
    axis, way = d.whole(0, len(shape) - 1), d.word(REDUCED)
    sizes = [d.whole(1, size) for size in shape]
    if way != "none":  # several may meet
        sizes[axis] = d.whole(1, 6)
        places = d.indices(-shape[axis], shape[axis], sizes)
    else:
        order = np.argsort(d.numbers.random(shape), axis=axis)
        places = order[tuple(slice(0, size) for size in sizes)]
        places = np.where(d.truths(*places.shape), places, places - shape[axis])
    attributes: dict[str, Any] = {"axis": d.spelled(axis, len(shape))}
    attributes |= {"reduction": way} if way != "none" or d.chance(0.5) else {}
    return Node(op, [d.normal(*shape), places.astype(np.int64), d.normal(*sizes)], attributes, 18)


@draws("ScatterND")
def scatter_rows(d: Draw, op: str) -> Node | None:
    shape, way = d.shape(most=3), d.word(REDUCED)
    deep, lead = d.whole(1, len(shape)), d.shape(high=3, least=0, most=2)
    many, all_rows = int(np.prod(lead)), int(np.prod(shape[:deep]))
    if way == "none" and many > all_rows:
        return None
    rows = d.wholes(0, all_rows - 1, many)
    if way == "none":
        rows = d.random.sample(range(all_rows), many)
    places = np.stack(np.unravel_index(rows, shape[:deep]), -1).reshape(*lead, deep)
    places = np.where(d.truths(*places.shape), places, places - np.array(shape[:deep]))
    values = d.normal(*lead, *shape[deep:])
    return Node(op, [d.normal(*shape), places.astype(np.int64), values], {"reduction": way}, 18)
