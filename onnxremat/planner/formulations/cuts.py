"""Cut relaxation: the memory limits kept only while K chosen ops run for the first time.

Cuts, intervals and spans are those of :mod:`onnxremat.planner.formulations.spans`. Binaries

    E[b, d, v]      op v runs on device d at least once in interval b
    X[b, d, u]      an instance of value u is on d across cut b: there by then, needed there after
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
      - takeover <= budget_d,                                                          (memory)
    takeover = sum_i size_i y_i, y_i <= max(X[b, d, i], R) - X[b, d, i], sum y <= 1,

and, for a split at op w, with all R = E[b-1, d, w] and A = sum_d E[b-1, d, w] <= 1, and base the
least that a run of w takes, which may be its second (``ProblemLists.least_run``),

    base_{d,w} R + sum_w weight_w U + sum_{u not in reads_w, writes_w} size_u X[b, d, u]
      <= budget_d - fixed_d
    E[b-1, d, v] <= A, K[b-1, e, d, u] <= A, E[b, d, w] <= A                           (empty)

where what is known is fixed: E to 1 in the interval of a known first run on the only device that
can run it, X to 1 for kept values once made that can be on one device only. On one device that is
all of them, and there is no K: the rows are then those of one memory limit.

Every schedule within the budgets satisfies all rows (``project`` gives its point; the proof is in
docs/bounds.md), so the optimum, or any dual bound of a solver, is a lower bound of the sum of its
steps. With ``makespan`` the objective is one column that is at least the load of every device and
link, which no schedule's makespan is below.

Sizes in a memory row are whole multiples of their common divisor, so the right-hand side is rounded
down to one (Chvatal and Gomory): training graphs of equal layers have few sizes.

The model is the project's own; it relaxes the stage model of Jain et al., "Checkmate: Breaking
the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from onnxremat.planner.formulations.cut_memory import add_memory, add_split_memory
from onnxremat.planner.formulations.cut_model import ALWAYS, NEVER, CutModel, Key, Terms
from onnxremat.planner.formulations.spans import Spans
from onnxremat.planner.formulations.stages import SCALE
from onnxremat.planner.problem_lists import ProblemLists


def build(
    lists: ProblemLists, spans: Spans, budgets: Sequence[int], *, makespan: bool = False
) -> CutModel:
    """The cut relaxation for budgets in bytes, one per device."""
    total = lists.problem.reference
    unit = total / SCALE if total > 0 else 1.0
    made = CutModel(lists, spans, tuple(int(b) for b in budgets), unit)
    price = 0.0 if makespan else 1.0 / unit
    for interval in range(made.intervals):
        _add_columns(made, interval, price)
    _add_groups(made)
    _add_weights(made)
    for interval in range(made.intervals):
        for device in lists.devices:
            _add_inputs(made, interval, device)
        _add_sources(made, interval)
        if interval:
            for device in lists.devices:
                _add_carries(made, interval, device)
            _add_kept(made, interval)
            split = spans.split(spans.cuts[interval - 1])
            for device in lists.devices:
                if split is None:
                    add_memory(made, interval, device)
                else:
                    add_split_memory(made, interval, device, split.op)
            if split is not None:
                _add_empty(made, interval, split.op)
    _add_required(made)
    _add_first_runs(made)
    if makespan:
        _add_loads(made)
    return made


def _wanted(lists: ProblemLists, spans: Spans, interval: int) -> list[bool]:
    """Values that some op may read in this interval or later, or that are kept, shape (values,).

    A reader counts when its first run may come so late, or when it may run again to make a value
    that is itself wanted. Holding or remaking other values only costs, so they get no columns.
    """
    wanted, keep, late = list(lists.keep), lists.keep, spans.latest
    reads, writes, recomputable = lists.reads, lists.writes, lists.recomputable
    for op in reversed(range(lists.problem.ops)):
        if late[op] >= interval or (
            recomputable[op] and any(wanted[u] and not keep[u] for u in writes[op])
        ):
            for value in reads[op]:
                wanted[value] = True
    return wanted


def _add_columns(made: CutModel, interval: int, price: float) -> None:
    lists, spans, model = made.lists, made.spans, made.model
    ops, values, keep, lone = lists.problem.ops, lists.problem.values, lists.keep, lists.lone
    places, recomputable, costs, ables = lists.places, lists.recomputable, lists.cost, lists.able
    earliest, latest = spans.earliest, spans.latest
    wanted = _wanted(lists, spans, interval)
    run = [[NEVER] * ops for _ in lists.devices]
    carry = [[NEVER] * values for _ in lists.devices]
    copied = {link: [NEVER] * values for link in lists.links}
    cut = spans.cuts[interval] if interval < len(spans.cuts) else NEVER
    for op, writes in enumerate(lists.writes):
        early, late, able = earliest[op], latest[op], ables[op]
        if early == late == interval and len(able) == 1:
            run[able[0]][op] = ALWAYS
            model.offset += costs[able[0]][op] * price
        elif early <= interval <= late or (
            early < interval and recomputable[op] and any(wanted[u] and not keep[u] for u in writes)
        ):
            for d in able:
                run[d][op] = model.binary(costs[d][op] * price)
        if early < interval:
            for u in writes:
                if keep[u] and lone[u] >= 0 and late < interval:
                    carry[lone[u]][u] = ALWAYS
                elif wanted[u]:
                    for d in places[u]:
                        carry[d][u] = model.binary()
        if copied and early <= interval and op != cut:
            _add_copies(made, copied, [u for u in writes if wanted[u]], price)
    made.run.append(run)
    made.carry.append(carry)
    made.copied.append(copied)


def _add_copies(
    made: CutModel, copied: dict[Key, list[int]], values: Sequence[int], price: float
) -> None:
    copy = made.lists.copy
    for u in values:
        for (e, d), row in copied.items():
            if isfinite(copy[e][d][u]):
                row[u] = made.model.binary(copy[e][d][u] * price)


def _add_groups(made: CutModel) -> None:
    lists, model = made.lists, made.model
    for group, members in lists.members.items():
        able = [d for d in lists.devices if all(d in lists.able[op] for op in members)]
        for d in lists.devices:
            made.share[group, d] = model.column(0.0, 1.0 if d in able else 0.0, integer=True)
        model.row([(made.share[group, d], 1.0) for d in lists.devices], lower=1.0, upper=1.0)
        for d in lists.devices:
            for interval in range(made.intervals):
                for op in members:
                    _at_least(made, made.share[group, d], made.run[interval][d][op])


def _at_least(made: CutModel, above: int, below: int) -> None:
    """Row: one column is at least another, which may be fixed."""
    if below == ALWAYS:
        made.model.row([(above, 1.0)], lower=1.0)
    elif below >= 0:
        made.model.row([(above, 1.0), (below, -1.0)], lower=0.0)


def _covered(made: CutModel, need: int, sources: Sequence[int]) -> None:
    """Row: ``need``, which may be fixed, is at most the sum of ``sources``."""
    if ALWAYS in sources:
        return
    terms: Terms = [(column, 1.0) for column in sources if column >= 0]
    if need == ALWAYS:
        made.model.row(terms, lower=1.0)
    else:
        made.model.row([*terms, (need, -1.0)], lower=0.0)


def _add_weights(made: CutModel) -> None:
    lists = made.lists
    for op, weights in enumerate(lists.uses):
        for weight in weights:
            for d in lists.able[op]:
                if (d, weight) not in made.resident:
                    made.resident[d, weight] = made.model.column(0.0, 1.0)
                for interval in range(made.intervals):
                    _at_least(made, made.resident[d, weight], made.run[interval][d][op])


def _ending(made: CutModel, interval: int) -> int:
    """The op at whose run an interval is split off, which nothing in it can read; -1 for none."""
    if interval + 1 == made.intervals:
        return NEVER
    split = made.spans.split(made.spans.cuts[interval])
    return NEVER if split is None else split.op


def _add_inputs(made: CutModel, interval: int, device: int) -> None:
    lists, row, producer = made.lists, made.model.row, made.lists.producer
    run, carry = made.run[interval][device], made.carry[interval][device]
    into = [copied for (_, d), copied in made.copied[interval].items() if d == device]
    ending = _ending(made, interval)
    for op, reads in enumerate(lists.reads):
        here = run[op]
        if here == NEVER:
            continue
        for value in reads:
            maker = producer[value]
            held, remade = carry[value], NEVER if maker == ending else run[maker]
            if held == ALWAYS or remade == ALWAYS:
                continue
            sources = [(j, 1.0) for j in (held, remade) if j >= 0]
            if into:
                sources += [(copied[value], 1.0) for copied in into if copied[value] >= 0]
            if here == ALWAYS:
                row(sources, lower=1.0)
            else:
                row([*sources, (here, -1.0)], lower=0.0)


def _there(made: CutModel, interval: int, device: int, value: int, but: int = -1) -> list[int]:
    """Columns by which a value is on a device in an interval; ``but`` is no source of copies."""
    columns = [
        made.carry[interval][device][value],
        made.run[interval][device][made.lists.producer[value]],
    ]
    columns += [
        row[value] for (e, d), row in made.copied[interval].items() if d == device and e != but
    ]
    return [column for column in columns if column != NEVER]


def _add_sources(made: CutModel, interval: int) -> None:
    producer, ending = made.lists.producer, _ending(made, interval)
    for (e, d), row in made.copied[interval].items():
        for value, column in enumerate(row):
            if column != NEVER:
                there = _there(made, interval, e, value, but=d)
                if producer[value] == ending:  # it runs at the end: nothing is copied after
                    ran = made.run[interval][e][ending]
                    there = [j for j in there if j != ran]
                _covered(made, column, there)


def _add_carries(made: CutModel, interval: int, device: int) -> None:
    lists, producer, row = made.lists, made.lists.producer, made.model.row
    keep, stays = lists.keep, (lists.lone, lists.required)
    before, ran = made.carry[interval - 1][device], made.run[interval - 1][device]
    into = [copied for (_, d), copied in made.copied[interval - 1].items() if d == device]
    for value, here in enumerate(made.carry[interval][device]):
        if here < 0:
            continue
        held, remade = before[value], ran[producer[value]]
        if held != ALWAYS and remade != ALWAYS:
            sources = [(j, 1.0) for j in (held, remade) if j >= 0]
            if into:
                sources += [(copied[value], 1.0) for copied in into if copied[value] >= 0]
            row([*sources, (here, -1.0)], lower=0.0)
        if keep[value] and device in (stays[0][value], stays[1][value]):
            for source in _arrivals(made, interval - 1, device, value):
                _at_least(made, here, source)


def _arrivals(made: CutModel, interval: int, device: int, value: int) -> list[int]:
    """Columns that say a kept value was on the device that it must end on: once there it stays.

    A second run of its op does not make it, so where the first may be elsewhere a run says nothing.
    """
    there = _there(made, interval, device, value)
    maker = made.lists.producer[value]
    if made.lists.lone[value] < 0 and made.lists.recomputable[maker]:
        ran = made.run[interval][device][maker]
        return [column for column in there if column != ran]
    return there


def _add_kept(made: CutModel, interval: int) -> None:
    """A kept value is somewhere once it is made."""
    lists, spans = made.lists, made.spans
    for value, kept in enumerate(lists.keep):
        maker = lists.producer[value]
        if not kept or lists.lone[value] >= 0 or spans.earliest[maker] >= interval:
            continue
        row = [made.carry[interval][d][value] for d in lists.places[value]]
        if spans.latest[maker] < interval:
            _covered(made, ALWAYS, row)
        else:
            for b in range(spans.earliest[maker], interval):
                for column in made.runs(b, maker):
                    _covered(made, column, row)


def _add_required(made: CutModel) -> None:
    last = made.intervals - 1
    for value, device in enumerate(made.lists.required):
        if device >= 0 and made.lists.lone[value] < 0:
            _covered(made, ALWAYS, _there(made, last, device, value))


def _add_empty(made: CutModel, interval: int, op: int) -> None:
    """Where its op does not run, a split part is empty, and the rest does not run it either."""
    before, model = made.runs(interval - 1, op), made.model
    if ALWAYS in before:
        return
    if len(before) > 1:
        model.row([(column, 1.0) for column in before], upper=1.0)
    columns = [column for row in made.run[interval - 1] for column in row]
    columns += [row[op] for row in made.run[interval]]
    columns += [column for row in made.copied[interval - 1].values() for column in row]
    here: Terms = [(column, 1.0) for column in before]
    for column in columns:
        if column >= 0 and column not in before:
            model.row([(column, -1.0), *here], lower=0.0)


def _add_first_runs(made: CutModel) -> None:
    lists, spans, model = made.lists, made.spans, made.model
    ables = lists.able
    for op, (early, late) in enumerate(zip(spans.earliest, spans.latest, strict=True)):
        if early == late and len(ables[op]) == 1:
            continue
        terms: Terms = [(j, 1.0) for b in range(early, late + 1) for j in made.runs(b, op)]
        once = not lists.recomputable[op]
        model.row(terms, lower=1.0, upper=1.0 if once else float(len(terms)))
    for interval, op in enumerate(spans.cuts):
        if spans.split(op) is None and len(lists.able[op]) > 1 and lists.recomputable[op]:
            model.row([(j, 1.0) for j in made.runs(interval, op)], lower=1.0, upper=1.0)


def _add_loads(made: CutModel) -> None:
    """The objective is at least the load of every device and of every link."""
    lists, model = made.lists, made.model
    made.load = model.column(cost=1.0 / made.unit)
    for d in lists.devices:
        base = 0.0
        terms: Terms = [(made.load, 1.0)]
        for row in made.run:
            for op, column in enumerate(row[d]):
                if column == ALWAYS:
                    base += lists.cost[d][op]
                elif column >= 0 and lists.cost[d][op]:
                    terms.append((column, -lists.cost[d][op]))
        model.row(terms, lower=base)
    for e, d in lists.links:
        seconds = lists.copy[e][d]
        terms = [(made.load, 1.0)]
        for copied in made.copied:
            for value, column in enumerate(copied[e, d]):
                if column >= 0 and seconds[value]:
                    terms.append((column, -seconds[value]))
        model.row(terms, lower=0.0)
