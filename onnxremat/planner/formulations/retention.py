"""Retention intervals on a grid of events (the idea of MOCCASIN), as a mixed-integer program.

After Bartan et al., "MOCCASIN: Efficient Tensor Rematerialization for Neural Networks", ICML 2023:
each value is retained in at most C intervals; an interval starts where its producer runs. Events
are E = (t, k), stage t and op k <= t, in that order; op k can run only at events (t, k). The paper
gives intervals integer ends and a cumulative constraint to a CP solver; here x[i, E] = 1 while
value i is retained, which is linear:

    min   sum C_k r[t,k]
    s.t.  r[k,k] = 1,  sum_t r[t,k] <= C
          r[t,k] <= x[i,(t,k)]                            i read or made by k
          x[i,E] <= x[i,E-1] + r[t,p(i)] [E = (t,p(i))]   (starts only where it is made)
          fixed + sum_i M_i x[i,E] + W_k r[t,k] - sum M_i y[i,E] <= budget
          y[i,E] <= r[t,k], 1 - x[i,E+1] (+ r[E+1] if E+1 remakes i),  sum_i y[i,E] <= 1
                                                          i in INPLACE(k)
          x[i,E] = 1 for kept i once made

With C >= n the optimum is that of Checkmate's model.
"""

from __future__ import annotations

from onnxremat.planner.formulations.stages import SCALE, StageModel, may_run, time_unit
from onnxremat.planner.model import Model
from onnxremat.planner.problem_lists import ProblemLists


def build(lists: ProblemLists, budget: int, *, intervals: int = 3) -> StageModel:
    """The retention-interval model; ``intervals`` is C."""
    model = Model("retention")
    made = StageModel(lists, time_unit(lists), model)
    events = [(t, k) for t in range(lists.problem.ops) for k in range(t + 1)]
    for stage, op in events:
        if may_run(lists, stage, op):
            made.run[0, stage, op] = model.column(
                float(op == stage), 1.0, lists.cost[0][op] / made.unit, integer=True,
                label=f"r_{stage}_{op}",
            )  # fmt: skip
    for op in range(lists.problem.ops):
        runs = [column for (_, _, k), column in made.run.items() if k == op]
        model.row([(column, 1.0) for column in runs], upper=float(intervals))
    held = [_retained(made, value, events) for value in range(lists.problem.values)]
    for place in range(len(events)):
        _memory(made, held, events, place, budget)
    return made


def _retained(made: StageModel, value: int, events: list[tuple[int, int]]) -> list[int]:
    """x columns of one value at every event (-1 before its first run)."""
    lists, model = made.lists, made.model
    maker = lists.producer[value]
    columns: list[int] = []
    for stage, op in events:
        if (stage, op) < (maker, maker):
            columns.append(-1)
            continue
        known = lists.keep[value] or (stage, op) == (maker, maker)
        column = model.column(float(known), 1.0, integer=True, label=f"x_{value}_{stage}_{op}")
        sources = [(columns[-1], 1.0)] if columns and columns[-1] >= 0 else []
        run = made.run.get((0, stage, maker)) if op == maker else None
        if run is not None:
            sources.append((run, 1.0))
            model.row([(column, 1.0), (run, -1.0)], lower=0.0)
        model.row([*sources, (column, -1.0)], lower=0.0)
        reader = made.run.get((0, stage, op))
        if reader is not None and value in lists.reads[op]:
            model.row([(column, 1.0), (reader, -1.0)], lower=0.0)
        columns.append(column)
    return columns


def _memory(
    made: StageModel,
    held: list[list[int]],
    events: list[tuple[int, int]],
    place: int,
    budget: int,
) -> None:
    lists, model = made.lists, made.model
    scale = SCALE / max(1, budget)
    stage, op = events[place]
    run = made.run.get((0, stage, op))
    terms = [
        (row[place], lists.size[0][value] * scale)
        for value, row in enumerate(held)
        if row[place] >= 0
    ]
    takes: list[int] = []
    if run is not None:
        terms.append((run, lists.work[0][op] * scale))
        for value in lists.inplace[op]:
            take = model.column(0.0, 1.0)
            model.row([(take, 1.0), (run, -1.0)], upper=0.0)
            if place + 1 < len(events):
                model.row([(take, 1.0), *_carried_on(made, held, events[place + 1], place, value)],
                          upper=1.0)  # fmt: skip
            terms.append((take, -lists.size[0][value] * scale))
            takes.append(take)
    if len(takes) > 1:
        model.row([(take, 1.0) for take in takes], upper=1.0)
    model.row(terms, upper=(budget - lists.problem.resident) * scale)


def _carried_on(
    made: StageModel, held: list[list[int]], after: tuple[int, int], place: int, value: int
) -> list[tuple[int, float]]:
    """Terms that are 1 when this copy of ``value`` is retained into the next event."""
    terms = [(held[value][place + 1], 1.0)]
    stage, op = after
    remade = made.run.get((0, stage, op))
    if remade is not None and op == made.lists.producer[value]:
        terms.append((remade, -1.0))
    return terms
