"""XEngine's MIQP: retain or recompute on several devices, copies priced as products.

After Schuler et al., "XEngine: Optimal Tensor Rematerialization for Neural Networks in
Heterogeneous Environments", ACM TACO 2022. For devices d, e, stages t, ops k <= t, values i:

    min   sum C[d,k] R[d,t,k] + sum_{d != e} Q[e,d,i] A[e,t,i] K[d,t,i]
    s.t.  sum_d R[d,t,t] = 1
          R[d,t,k] <= R[d,t,p(i)] + S[d,t,i] + K[d,t,i]           i in DEPS(k)
          S[d,t+1,i] <= R[d,t,p(i)] + S[d,t,i] + K[d,t,i]
          R[d,t,p(i)] + S[d,t,i] + K[d,t,i] <= 1                  (one copy per device)
          A[e,t,i] <= R[e,t,p(i)] + S[e,t,i],  sum_e A[e,t,i] >= K[d,t,i]
    and, per device, Checkmate's memory recurrence with FREE, TAKE and workspace.

A copy K happens at the place p(i) of stage t, takes room on the target from then on and keeps the
source alive until then; it is paid once however many consumers it has. Corrections to the
published model: memory rows per device, frees of the tensor that is read, copies that take memory.
``linear=True`` replaces each product A K by W >= A + K - 1, W >= 0, which is exact because W only
costs. With one device there are no copies and the model is Checkmate's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxremat.plan.formulations.stages import SCALE, StageModel, may_run, time_unit
from onnxremat.plan.model import Model
from onnxremat.plan.problem import Bytes, Floats
from onnxremat.plan.wiring import Wiring

Terms = list[tuple[int, float]]


@dataclass(frozen=True)
class Fleet:
    """Devices: ``cost[d, op]`` seconds, ``copy[e, d, value]`` seconds, ``budget[d]`` bytes."""

    cost: Floats
    copy: Floats
    budget: Bytes

    @classmethod
    def single(cls, wiring: Wiring, budget: int) -> Fleet:
        """One device with the problem's own costs."""
        values = wiring.problem.values
        costs = np.asarray([wiring.cost], np.float64)
        return cls(costs, np.zeros((1, 1, values)), np.asarray([budget], np.int64))


def build(wiring: Wiring, fleet: Fleet, *, linear: bool = False) -> StageModel:
    """XEngine's model; quadratic unless ``linear``."""
    made = StageModel(wiring, time_unit(wiring), Model("xengine-linear" if linear else "xengine"))
    return _Builder(made, fleet, linear).finish()


class _Builder:
    def __init__(self, made: StageModel, fleet: Fleet, linear: bool) -> None:
        self.made, self.model, self.wiring = made, made.model, made.wiring
        self.fleet, self.linear = fleet, linear
        self.devices = range(len(fleet.budget))
        self.retain: dict[tuple[int, int, int], int] = {}
        self.copy: dict[tuple[int, int, int], int] = {}

    def finish(self) -> StageModel:
        ops = self.wiring.problem.ops
        for stage in range(ops):
            self._columns(stage)
        for stage in range(ops):
            first = [(self.made.run[d, stage, stage], 1.0) for d in self.devices]
            self.model.row(first, lower=1.0, upper=1.0)
            self._kept(stage)
            self._copies(stage)
            for device in self.devices:
                self._dependencies(device, stage)
                self._memory(device, stage)
        return self.made

    def _columns(self, stage: int) -> None:
        wiring, model, unit = self.wiring, self.model, self.made.unit
        for d in self.devices:
            for op in range(stage + 1):
                if may_run(wiring, stage, op):
                    price = float(self.fleet.cost[d, op]) / unit
                    label = f"R_{d}_{stage}_{op}"
                    self.made.run[d, stage, op] = model.binary(price, label)
            for value, maker in enumerate(wiring.producer):
                if maker < stage:
                    self.retain[d, stage, value] = model.binary(label=f"S_{d}_{stage}_{value}")
                if maker <= stage and len(self.devices) > 1:
                    self.copy[d, stage, value] = model.binary(label=f"K_{d}_{stage}_{value}")

    def _sources(self, device: int, stage: int, value: int, *, copies: bool = True) -> Terms:
        run = self.made.run.get((device, stage, self.wiring.producer[value]))
        held = self.retain.get((device, stage, value))
        came = self.copy.get((device, stage, value)) if copies else None
        return [(column, 1.0) for column in (run, held, came) if column is not None]

    def _kept(self, stage: int) -> None:
        """Kept values stay on the device where they were made."""
        for value, keep in enumerate(self.wiring.keep):
            if not keep:
                continue
            for d in self.devices:
                later = self.retain.get((d, stage + 1, value))
                held = self.retain.get((d, stage, value))
                if held is None:
                    held = self.made.run.get((d, stage, self.wiring.producer[value]))
                if later is not None and held is not None:
                    self.model.row([(later, 1.0), (held, -1.0)], lower=0.0)

    def _copies(self, stage: int) -> None:
        model, unit = self.model, self.made.unit
        for value, maker in enumerate(self.wiring.producer):
            if maker > stage or len(self.devices) == 1:
                continue
            source = []
            for e in self.devices:
                column = model.binary(label=f"A_{e}_{stage}_{value}")
                model.row(
                    [*self._sources(e, stage, value, copies=False), (column, -1.0)], lower=0.0
                )
                source.append(column)
            for d in self.devices:
                came = self.copy[d, stage, value]
                others = [(source[e], 1.0) for e in self.devices if e != d]
                model.row([*others, (came, -1.0)], lower=0.0)
                for e in self.devices:
                    price = float(self.fleet.copy[e, d, value]) / unit
                    if e == d or price <= 0:
                        continue
                    if not self.linear:
                        model.quadratic_cost.append((source[e], came, price))
                        continue
                    both = model.column(0.0, 1.0, price)
                    model.row([(both, 1.0), (source[e], -1.0), (came, -1.0)], lower=-1.0)

    def _dependencies(self, device: int, stage: int) -> None:
        wiring, row = self.wiring, self.model.row
        for op in range(stage + 1):
            run = self.made.run.get((device, stage, op))
            if run is not None:
                for value in wiring.reads[op]:
                    row([*self._sources(device, stage, value), (run, -1.0)], lower=0.0)
        for value, maker in enumerate(wiring.producer):
            later = self.retain.get((device, stage + 1, value))
            if later is not None:
                row([*self._sources(device, stage, value), (later, -1.0)], lower=0.0)
            here = self._sources(device, stage, value)
            if len(here) > 1 and maker <= stage and not wiring.keep[value]:
                row(here, upper=1.0)

    def _memory(self, device: int, stage: int) -> None:
        wiring, model = self.wiring, self.model
        size, budget = wiring.size, int(self.fleet.budget[device])
        scale = SCALE / max(1, budget)
        change: Terms = [
            (column, size[value] * scale)
            for (d, t, value), column in self.retain.items()
            if (d, t) == (device, stage)
        ]
        before: int | None = None
        for op in range(stage + 1):
            run = self.made.run.get((device, stage, op))
            came = [self.copy.get((device, stage, value)) for value in wiring.writes[op]]
            new = [v for v in wiring.writes[op] if not wiring.keep[v] or op == stage]
            if run is not None:
                change.append((run, sum(size[value] for value in new) * scale))
            for value, column in zip(wiring.writes[op], came, strict=True):
                if column is not None:
                    change.append((column, size[value] * scale))
            if run is None and not any(column is not None for column in came):
                continue
            use = model.column(label=f"U_{device}_{stage}_{op}")
            chain = [] if before is None else [(before, -1.0)]
            model.row([(use, 1.0), *chain, *((c, -a) for c, a in change)], lower=0.0, upper=0.0)
            free = self._free(device, stage, op)
            limit: Terms = [(use, 1.0)]
            if run is not None:
                limit.append((run, wiring.work[op] * scale))
                limit += self._take(op, run, free, scale)
            fixed = wiring.problem.fixed if device == 0 else 0
            model.row(limit, upper=(budget - fixed) * scale)
            change = [(column, -size[value] * scale) for value, column in free.items()]
            before = use

    def _free(self, device: int, stage: int, op: int) -> dict[int, int]:
        """FREE columns after op's place: its inputs on this device, and its own outputs."""
        wiring, model = self.wiring, self.model
        freed = {}
        for value in {*wiring.reads[op], *wiring.writes[op]}:
            if wiring.keep[value]:
                continue
            column = model.column(0.0, 1.0, label=f"FREE_{device}_{stage}_{value}_{op}")
            if value in wiring.reads[op]:
                run = self.made.run.get((device, stage, op))
                here: Terms = [] if run is None else [(run, 1.0)]
            else:  # made, copied or held here at its own place
                here = self._sources(device, stage, value)
            model.row([*here, (column, -1.0)], lower=0.0)
            later = self.retain.get((device, stage + 1, value))
            if later is not None:
                model.row([(column, 1.0), (later, 1.0)], upper=1.0)
            for reader in wiring.readers[value]:
                again = self.made.run.get((device, stage, reader))
                if reader > op and again is not None:
                    model.row([(column, 1.0), (again, 1.0)], upper=1.0)
            freed[value] = column
        return freed

    def _take(self, op: int, run: int, free: dict[int, int], scale: float) -> Terms:
        wiring, model = self.wiring, self.model
        terms: Terms = []
        for value in wiring.inplace[op]:
            column = model.column(0.0, 1.0)
            model.row([(column, 1.0), (free[value], -1.0)], upper=0.0)
            model.row([(column, 1.0), (run, -1.0)], upper=0.0)
            terms.append((column, -wiring.size[value] * scale))
        if len(terms) > 1:
            model.row([(column, 1.0) for column, _ in terms], upper=1.0)
        return terms
