"""Memory rows of the cut model: one per cut and device where the limit can be broken."""

from __future__ import annotations

from math import gcd

from onnxremat.planner.formulations.cut_model import ALWAYS, NEVER, CutModel, Key, Terms
from onnxremat.planner.formulations.stages import SCALE

TINY = 1e-6  # share of the budget up to which a value does not keep sizes from being rounded


def add_memory(made: CutModel, interval: int, device: int) -> None:
    lists, cut = made.lists, made.spans.cuts[interval - 1]
    carry, size = made.carry[interval][device], lists.size[device]
    runs, room = made.run[interval - 1][device][cut], made.room(device)
    own = lists.work[device][cut] + sum(size[u] for u in lists.writes[cut])
    around = {*lists.reads[cut], *lists.writes[cut]}
    weight: dict[int, int] = {}
    if runs == ALWAYS:
        room -= own
    elif runs >= 0:
        weight[runs] = own
    for value, column in enumerate(carry):
        if column >= 0:
            if size[value] and value not in around:
                weight[column] = size[value]
        elif column == ALWAYS and value not in around:
            room -= size[value]
    takes = [] if runs == NEVER else lists.inplace[cut]
    present: dict[int, int] = {}
    for value in lists.reads[cut]:
        if len(takes) == 1 and takes[0] == value:  # size max(X, R) less size (max(X, R) - X)
            column = carry[value]
        else:
            column = present[value] = _presence(made, interval, device, value)
        if column == ALWAYS:
            room -= size[value]
        elif column >= 0:
            weight[column] = weight.get(column, 0) + size[value]
    if len(takes) > 1:
        weight |= _add_takeovers(made, interval, device, present)
    _add_resident(made, device, weight)
    _add_limit(made, (cut, device), weight, room, whole=len(takes) < 2)


def _add_resident(made: CutModel, device: int, weight: dict[int, int]) -> None:
    """Weights of the network join a memory row."""
    sizes = made.lists.problem.weight[device]
    for (d, item), column in made.resident.items():
        if d == device and sizes[item]:
            weight[column] = int(sizes[item])


def _presence(made: CutModel, interval: int, device: int, value: int) -> int:
    """Column (or ALWAYS, NEVER) of max(X, R): an input is on a device at a cut."""
    carried = made.carry[interval][device][value]
    runs = made.run[interval - 1][device][made.spans.cuts[interval - 1]]
    if ALWAYS in (runs, carried):
        return ALWAYS
    if NEVER in (runs, carried):
        return carried if runs == NEVER else runs
    column = made.model.column(0.0, 1.0)
    for below in (carried, runs):
        made.model.row([(column, 1.0), (below, -1.0)], lower=0.0)
    made.presence.append((column, interval, device, value))
    return column


def _add_takeovers(
    made: CutModel, interval: int, device: int, present: dict[int, int]
) -> dict[int, int]:
    """Columns y of the values that the cut op may take over, with the bytes they free (below 0)."""
    model, cut = made.model, made.spans.cuts[interval - 1]
    columns: dict[int, int] = {}
    for value in made.lists.inplace[cut]:
        column = model.column(0.0, 1.0)
        carried, here = made.carry[interval][device][value], present[value]
        terms: Terms = [(column, 1.0)] + ([(carried, 1.0)] if carried >= 0 else [])
        if here == ALWAYS:
            if carried >= 0:
                model.row(terms, upper=1.0)
        else:
            model.row([*terms, (here, -1.0)], upper=0.0)
        made.takeover.append((column, interval, device, value))
        columns[column] = -made.lists.size[device][value]
    model.row([(column, 1.0) for column in columns], upper=1.0)
    return columns


def add_split_memory(made: CutModel, interval: int, device: int, op: int) -> None:
    """The memory row of the split before an interval, which ends with its op or is empty."""
    lists, size = made.lists, made.lists.size[device]
    here, room = made.run[interval - 1][device][op], made.room(device)
    around = {*lists.reads[op], *lists.writes[op]}
    base = lists.least_run(device, op, first=False)
    weight: dict[int, int] = {}
    if here == ALWAYS:
        room -= base
    elif here >= 0:
        weight[here] = base
    for value, column in enumerate(made.carry[interval][device]):
        if value in around or not size[value]:
            continue
        if column == ALWAYS:
            room -= size[value]
        elif column >= 0:
            weight[column] = size[value]
    _add_resident(made, device, weight)
    _add_limit(made, (made.spans.cuts[interval - 1], device), weight, room, whole=False)


def _add_limit(made: CutModel, at: Key, weight: dict[int, int], room: int, *, whole: bool) -> None:
    """Append a memory row that can be broken, rounded where sizes have a common divisor.

    Sums of multiples of a divisor do not come closer to the limit than its next multiple below;
    sizes that are next to nothing are left out of the rounded row and kept in one of their own.
    """
    if sum(size for size in weight.values() if size > 0) <= room:
        return
    budget = made.budgets[at[1]]
    scale = SCALE / max(1, budget)
    sizes = {column: size for column, size in weight.items() if size > TINY * budget}
    divisor = gcd(*sizes.values()) if whole else 1
    if len(sizes) < len(weight) or divisor <= 1:
        terms = [(column, size * scale) for column, size in weight.items()]
        made.memory[at] = made.model.row(terms, upper=room * scale)
    if divisor > 1:
        terms = [(column, size * scale) for column, size in sizes.items()]
        made.memory[at] = made.model.row(terms, upper=room // divisor * divisor * scale)
