"""Cut relaxation on several devices: memory kept only while K chosen ops run for the first time.

Cuts, intervals and spans are those of :mod:`onnxremat.planner.formulations.cuts`. Binaries

    E[b, d, v]      op v runs on d in interval b
    X[b, d, u]      an instance of u is on d across cut b: there by then, needed there after it
    K[b, e, d, u]   u first comes to d in interval b by a copy from e

Minimise sum cost E + sum copy K subject to, for p the producer of u,

    E[b, d, v] <= X[b, d, u] + E[b, d, p] + sum_e K[b, e, d, u]        u in reads(v)    (inputs)
    K[b, e, d, u] <= X[b, e, u] + E[b, e, p] + sum_{f != d} K[b, f, e, u]               (source)
    X[b, d, u] <= X[b-1, d, u] + E[b-1, d, p] + sum_e K[b-1, e, d, u]                   (carried)
    sum_{b, d} E[b, d, v] >= 1        over the intervals its first run may fall in
    sum_d E[b-1, d, c_b] = 1          the cut op runs once in the interval it ends
    sum_d X[b, d, u] >= 1             u kept and made before cut b
    E[b, d, v] <= G[g, d], sum_d G[g, d] = 1      v in colocation group g
    U[d, w] >= E[b, d, v]                         v reads weight w

and, per cut c = c_b and device d, with R = E[b-1, d, c],

    fixed_d + sum_w weight_w U[d, w] + work_{d,c} R + sum_{u in writes_c} size_u R
      + sum_{u in reads_c} size_u max(X[b, d, u], R) + sum_{other u} size_u X[b, d, u]
      - takeover <= budget_d,
    takeover = sum_i size_i y_i, y_i <= max(X[b, d, i], R) - X[b, d, i], sum y <= 1.

Every schedule within the budgets satisfies all rows (``project`` gives its point; the proof is in
docs/planner.md), so the optimum, or any dual bound, is a lower bound of the sum of its steps. With
``makespan`` the objective is one column that is at least the load of every device and link, which
no schedule's makespan is below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from onnxremat.planner.devices.layout import Layout
from onnxremat.planner.formulations.cuts import ALWAYS, NEVER, SCALE, Spans
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats

Key = tuple[int, int]
Terms = list[tuple[int, float]]


@dataclass
class DeviceCuts:
    """A model with the columns of E, X, K (``NEVER`` and ``ALWAYS`` mark fixed ones).

    Attributes:
        unit: seconds per unit of the objective.
        run: ``run[b][d][v]``.
        carry: ``carry[b][d][u]``.
        copied: ``copied[b][e, d][u]`` per link.
        share: ``share[g, d]``, columns of G.
        resident: ``resident[d, w]``, columns of U.
        presence: (column, cut, device, value) of the columns for max(X, R).
        takeover: (column, cut, device, value) of the columns y.
        load: column of the makespan objective, -1 without.
    """

    layout: Layout
    spans: Spans
    budgets: tuple[int, ...]
    unit: float
    model: Model = field(default_factory=lambda: Model("device-cuts"))
    run: list[list[list[int]]] = field(default_factory=list)
    carry: list[list[list[int]]] = field(default_factory=list)
    copied: list[dict[Key, list[int]]] = field(default_factory=list)
    share: dict[Key, int] = field(default_factory=dict)
    resident: dict[Key, int] = field(default_factory=dict)
    presence: list[tuple[int, int, int, int]] = field(default_factory=list)
    takeover: list[tuple[int, int, int, int]] = field(default_factory=list)
    load: int = NEVER

    @property
    def intervals(self) -> int:
        """Number of intervals, K + 1."""
        return len(self.spans.cuts) + 1

    def seconds(self, objective: float) -> float:
        """Time in seconds of an objective value."""
        return objective * self.unit

    def is_on(self, point: Floats, column: int) -> bool:
        """Whether a 0/1 column is 1 at a point."""
        return column == ALWAYS or (column >= 0 and bool(point[column] > 0.5))


def build(
    layout: Layout, spans: Spans, budgets: Sequence[int], *, makespan: bool = False
) -> DeviceCuts:
    """The cut relaxation for budgets in bytes, one per device."""
    total = layout.problem.reference
    unit = total / SCALE if total > 0 else 1.0
    made = DeviceCuts(layout, spans, tuple(int(b) for b in budgets), unit)
    price = 0.0 if makespan else 1.0 / unit
    for interval in range(made.intervals):
        _add_columns(made, interval, price)
    _add_groups(made)
    _add_weights(made)
    for interval in range(made.intervals):
        _add_inputs(made, interval)
        _add_sources(made, interval)
        if interval:
            _add_carries(made, interval)
            _add_kept(made, interval)
            for device in layout.devices:
                _add_memory(made, interval, device)
    _add_goals(made)
    _add_first_runs(made)
    if makespan:
        _add_loads(made)
    return made


def _wanted(layout: Layout, spans: Spans, interval: int) -> list[bool]:
    """Values that some op may read in this interval or later, or that are kept."""
    wiring = layout.wiring
    wanted = list(layout.keep)
    for op in reversed(range(layout.problem.ops)):
        again = layout.recomputable[op] and any(
            wanted[value] and not layout.keep[value] for value in wiring.writes[op]
        )
        if again or spans.latest[op] >= interval:
            for value in wiring.reads[op]:
                wanted[value] = True
    return wanted


def _add_columns(made: DeviceCuts, interval: int, price: float) -> None:
    layout, spans, model = made.layout, made.spans, made.model
    wiring, problem = layout.wiring, layout.problem
    wanted = _wanted(layout, spans, interval)
    run = [[NEVER] * problem.ops for _ in layout.devices]
    carry = [[NEVER] * problem.values for _ in layout.devices]
    copied = {link: [NEVER] * problem.values for link in layout.links}
    for op in range(problem.ops):
        early, late = spans.earliest[op], spans.latest[op]
        writes = wiring.writes[op]
        again = layout.recomputable[op] and any(wanted[u] and not layout.keep[u] for u in writes)
        ends = interval < len(spans.cuts) and spans.cuts[interval] == op
        if early <= interval <= late or (early < interval and again):
            for d in layout.able[op]:
                cost = layout.cost[d][op]
                if early == late == interval and len(layout.able[op]) == 1:
                    run[d][op] = ALWAYS
                    model.offset += cost * price
                else:
                    run[d][op] = model.binary(cost * price)
        for u in writes:
            if not wanted[u]:
                continue
            if early < interval:
                for d in layout.devices:
                    carry[d][u] = model.binary()
            if early <= interval and not ends:
                for e, d in layout.links:
                    if isfinite(layout.copy[e][d][u]):
                        copied[e, d][u] = model.binary(layout.copy[e][d][u] * price)
    made.run.append(run)
    made.carry.append(carry)
    made.copied.append(copied)


def _add_groups(made: DeviceCuts) -> None:
    layout, model = made.layout, made.model
    for group, members in layout.members.items():
        able = [d for d in layout.devices if all(d in layout.able[op] for op in members)]
        for d in layout.devices:
            made.share[group, d] = model.column(0.0, 1.0 if d in able else 0.0, integer=True)
        model.row([(made.share[group, d], 1.0) for d in layout.devices], lower=1.0, upper=1.0)
        for d in layout.devices:
            for interval in range(made.intervals):
                for op in members:
                    _at_least(made, made.share[group, d], made.run[interval][d][op])


def _at_least(made: DeviceCuts, above: int, below: int) -> None:
    """Row: one column is at least another, which may be fixed."""
    if below == ALWAYS:
        made.model.row([(above, 1.0)], lower=1.0)
    elif below >= 0:
        made.model.row([(above, 1.0), (below, -1.0)], lower=0.0)


def _add_weights(made: DeviceCuts) -> None:
    layout = made.layout
    for op, weights in enumerate(layout.uses):
        for weight in weights:
            for d in layout.able[op]:
                if (d, weight) not in made.resident:
                    made.resident[d, weight] = made.model.column(0.0, 1.0)
                for interval in range(made.intervals):
                    _at_least(made, made.resident[d, weight], made.run[interval][d][op])


def _add_inputs(made: DeviceCuts, interval: int) -> None:
    layout = made.layout
    for op, reads in enumerate(layout.wiring.reads):
        for d in layout.able[op]:
            here = made.run[interval][d][op]
            if here != NEVER:
                for value in reads:
                    _covered(made, here, _there(made, interval, d, value))


def _there(made: DeviceCuts, interval: int, device: int, value: int, but: int = -1) -> list[int]:
    """Columns by which a value is on a device in an interval; ``but`` is no source of copies."""
    columns = [
        made.carry[interval][device][value],
        made.run[interval][device][made.layout.wiring.producer[value]],
    ]
    columns += [
        row[value] for (e, d), row in made.copied[interval].items() if d == device and e != but
    ]
    return [column for column in columns if column != NEVER]


def _covered(made: DeviceCuts, need: int, sources: list[int]) -> None:
    """Row: ``need`` is at most the sum of ``sources``."""
    if ALWAYS in sources:
        return
    terms: Terms = [(column, 1.0) for column in sources]
    if need == ALWAYS:
        made.model.row(terms, lower=1.0)
    else:
        made.model.row([*terms, (need, -1.0)], lower=0.0)


def _add_sources(made: DeviceCuts, interval: int) -> None:
    for (e, d), row in made.copied[interval].items():
        for value, column in enumerate(row):
            if column != NEVER:
                _covered(made, column, _there(made, interval, e, value, but=d))


def _add_carries(made: DeviceCuts, interval: int) -> None:
    for d, row in enumerate(made.carry[interval]):
        for value, column in enumerate(row):
            if column != NEVER:
                _covered(made, column, _there(made, interval - 1, d, value))


def _add_kept(made: DeviceCuts, interval: int) -> None:
    """A kept value is somewhere once it is made, and stays where it must end."""
    layout, spans = made.layout, made.spans
    for value, kept in enumerate(layout.keep):
        maker = layout.wiring.producer[value]
        if not kept or spans.earliest[maker] >= interval:
            continue
        held: Terms = [(made.carry[interval][d][value], 1.0) for d in layout.devices]
        if spans.latest[maker] < interval:
            made.model.row(held, lower=1.0)
        else:
            for b in range(spans.earliest[maker], interval):
                for d in layout.able[maker]:
                    made.model.row([*held, (made.run[b][d][maker], -1.0)], lower=0.0)
        goal = layout.goal[value]
        if goal >= 0:
            column = made.carry[interval][goal][value]
            for earlier in _there(made, interval - 1, goal, value):
                if not layout.recomputable[maker] or earlier not in _runs(made, maker):
                    _at_least(made, column, earlier)


def _runs(made: DeviceCuts, op: int) -> set[int]:
    return {made.run[b][d][op] for b in range(made.intervals) for d in made.layout.able[op]}


def _add_goals(made: DeviceCuts) -> None:
    last = made.intervals - 1
    for value, goal in enumerate(made.layout.goal):
        if goal >= 0:
            _covered(made, ALWAYS, _there(made, last, goal, value))


def _add_memory(made: DeviceCuts, interval: int, device: int) -> None:
    layout, model = made.layout, made.model
    op, carry = made.spans.cuts[interval - 1], made.carry[interval][device]
    size, wiring = layout.size[device], layout.wiring
    runs = made.run[interval - 1][device][op]
    room = made.budgets[device] - int(layout.problem.fixed[device])
    weight: dict[int, int] = {}

    def add(column: int, amount: int) -> None:
        if column >= 0 and amount:
            weight[column] = weight.get(column, 0) + amount

    own = layout.work[device][op] + sum(size[u] for u in wiring.writes[op])
    if runs == ALWAYS:
        room -= own
    else:
        add(runs, own)
    around = {*wiring.reads[op], *wiring.writes[op]}
    for value, column in enumerate(carry):
        if value not in around:
            add(column, size[value])
    takes = [u for u in wiring.inplace[op] if runs != NEVER]
    for value in wiring.reads[op]:
        if takes == [value]:  # size max(X, R) less size (max(X, R) - X)
            add(carry[value], size[value])
        else:
            column = _presence(made, interval, device, value, runs)
            if column == ALWAYS:
                room -= size[value]
            else:
                add(column, size[value])
    if len(takes) > 1:
        _add_takeovers(made, interval, device, takes, runs, weight)
    for (d, item), column in made.resident.items():
        if d == device:
            add(column, int(layout.problem.weight[item]))
    if sum(amount for amount in weight.values() if amount > 0) > room:
        scale = SCALE / max(1, made.budgets[device])
        model.row([(j, amount * scale) for j, amount in weight.items()], upper=room * scale)


def _presence(made: DeviceCuts, interval: int, device: int, value: int, runs: int) -> int:
    """Column (or ALWAYS, NEVER) of max(X, R): an input is on a device at a cut."""
    carried = made.carry[interval][device][value]
    if runs in (ALWAYS, NEVER) or carried == NEVER:
        return carried if runs == NEVER else runs
    column = made.model.column(0.0, 1.0)
    for below in (carried, runs):
        made.model.row([(column, 1.0), (below, -1.0)], lower=0.0)
    made.presence.append((column, interval, device, value))
    return column


def _add_takeovers(
    made: DeviceCuts, interval: int, device: int, takes: list[int], runs: int,
    weight: dict[int, int],
) -> None:  # fmt: skip
    model = made.model
    there = {(b, d, u): column for column, b, d, u in made.presence}
    columns = []
    for value in takes:
        column = model.column(0.0, 1.0)
        carried = made.carry[interval][device][value]
        present = there.get((interval, device, value), runs)
        terms: Terms = [(column, 1.0)] + ([(carried, 1.0)] if carried >= 0 else [])
        if present == ALWAYS:
            model.row(terms, upper=1.0)
        else:
            model.row([*terms, (present, -1.0)], upper=0.0)
        made.takeover.append((column, interval, device, value))
        weight[column] = -made.layout.size[device][value]
        columns.append(column)
    model.row([(column, 1.0) for column in columns], upper=1.0)


def _add_first_runs(made: DeviceCuts) -> None:
    layout, spans, model = made.layout, made.spans, made.model
    for op, (early, late) in enumerate(zip(spans.earliest, spans.latest, strict=True)):
        columns = [made.run[b][d][op] for b in range(early, late + 1) for d in layout.able[op]]
        terms: Terms = [(column, 1.0) for column in columns if column >= 0]
        if terms:
            once = not layout.recomputable[op]
            model.row(terms, lower=1.0, upper=1.0 if once else float(len(terms)))
    for interval, op in enumerate(spans.cuts):
        terms = [(made.run[interval][d][op], 1.0) for d in layout.able[op]]
        if len(terms) > 1 and layout.recomputable[op]:
            model.row(terms, lower=1.0, upper=1.0)


def _add_loads(made: DeviceCuts) -> None:
    """The objective is at least the load of every device and of every link."""
    layout, model = made.layout, made.model
    made.load = model.column(cost=1.0 / made.unit)
    rows: list[Terms] = []
    for d in layout.devices:
        base = 0.0
        terms: Terms = []
        for b in range(made.intervals):
            for op, column in enumerate(made.run[b][d]):
                if column == ALWAYS:
                    base += layout.cost[d][op]
                elif column >= 0 and layout.cost[d][op]:
                    terms.append((column, -layout.cost[d][op]))
        model.row([(made.load, 1.0), *terms], lower=base)
    for link in layout.links:
        seconds = layout.copy[link[0]][link[1]]
        rows.append(
            [
                (column, -seconds[value])
                for b in range(made.intervals)
                for value, column in enumerate(made.copied[b][link])
                if column >= 0 and seconds[value]
            ]
        )
    for terms in rows:
        model.row([(made.load, 1.0), *terms], lower=0.0)
