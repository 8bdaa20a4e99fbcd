"""XEngine's MIQP: retain or recompute on several devices, copies priced as products.

After Schuler et al., "XEngine: Optimal Tensor Rematerialization for Neural Networks in
Heterogeneous Environments", ACM TACO 2022. For devices d, e, stages t, ops k <= t, values i:

    min   sum C[d,k] R[d,t,k] + sum_{d != e} Q[e,d,i] A[e,t,i] K[d,t,i]
    s.t.  sum_d R[d,t,t] = 1
          R[d,t,k] <= R[d,t,p(i)] + S[d,t,i] + K[d,t,i]           i in DEPS(k)
          S[d,t+1,i] <= R[d,t,p(i)] + S[d,t,i] + K[d,t,i]
          R[d,t,p(i)] + S[d,t,i] + K[d,t,i] <= 1                  (one instance per device)
          A[e,t,i] <= R[e,t,p(i)] + S[e,t,i],  sum_e A[e,t,i] <= 1
          K[d,t,i] <= sum_{e -> d} A[e,t,i]
    and, per device, Checkmate's memory recurrence with FREE, TAKE, workspace and weights.

A copy K happens at the place p(i) of stage t, takes room on the target from then on and keeps the
source alive until then; it is paid once however many consumers it has. All copies of a value in one
stage come from one device. Corrections to the published model: memory rows per device, frees of the
tensor that is read, copies that take memory.

A kept value is made by the first run of its op alone. H[d,i] chooses the device that holds it: from
its first arrival there it is not given back. W[d,w] = 1 where an op that reads weight w ever runs;
G[d,g] is the device of colocation group g. Ops have no R where they cannot run.

``linear=True`` replaces A K by B[e,d,t,i] with B <= A, sum_e B >= K, which is exact because B only
costs. With one device there are no copies and the model is Checkmate's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

from onnxremat.planner.formulations.stages import SCALE, may_run
from onnxremat.planner.formulations.xengine_readback import XengineModel
from onnxremat.planner.model import Model
from onnxremat.planner.problem import ANY, Problem
from onnxremat.planner.problem_lists import ProblemLists

Terms = list[tuple[int, float]]


def build(problem: Problem, budgets: Sequence[int], *, linear: bool = False) -> XengineModel:
    """XEngine's model for a budget in bytes per device; quadratic unless ``linear``."""
    return _Builder(Grid(ProblemLists(problem), tuple(budgets)), linear).finish()


def columns(problem: Problem, budgets: Sequence[int], *, linear: bool = False) -> int:
    """Columns of the model that :func:`build` makes, without making it."""
    return Grid(ProblemLists(problem), tuple(budgets)).columns(linear)


@dataclass(frozen=True)
class Grid:
    """Which columns there are: places, values and devices that a schedule may use.

    Attributes:
        budgets: bytes per device.
    """

    layout: ProblemLists
    budgets: tuple[int, ...]

    @cached_property
    def limited(self) -> list[bool]:
        """Devices that could be asked for more than their budget; the others get no memory rows."""
        problem = self.layout.problem
        most = [
            int(problem.fixed[d]) + int(problem.weight[d].sum())
            + sum(self.layout.size[d]) + max(self.layout.work[d], default=0)
            for d in self.layout.devices
        ]  # fmt: skip
        return [len(most) == 1 or need > b for need, b in zip(most, self.budgets, strict=True)]

    @cached_property
    def into(self) -> list[list[list[int]]]:
        """Devices from which each value can be copied to each device."""
        copy = self.layout.copy
        return [
            [[e for e in self.layout.devices if e != d and isfinite(copy[e][d][i])]
             for i in range(self.layout.problem.values)]
            for d in self.layout.devices
        ]  # fmt: skip

    @cached_property
    def out(self) -> list[list[bool]]:
        """Whether each value can be copied from each device to any."""
        return [
            [any(e in self.into[d][i] for d in self.layout.devices)
             for i in range(self.layout.problem.values)]
            for e in self.layout.devices
        ]  # fmt: skip

    def runs(self, device: int, stage: int, op: int) -> bool:
        """Op may run on the device in the stage; an input's stand-in once, as its value takes no
        room at home."""
        if op < self.layout.problem.host_inputs and stage > op:
            return False
        return device in self.layout.able[op] and may_run(self.layout, stage, op)

    def comes(self, device: int, value: int) -> bool:
        """The value can be made on the device, or copied there."""
        maker = self.layout.producer[value]
        return device in self.layout.able[maker] or bool(self.into[device][value])

    def chosen(self, device: int, value: int) -> bool:
        """It is the model's choice whether the device holds this kept value."""
        free = self.layout.keep[value] and self.layout.required[value] == ANY
        return free and self.layout.problem.devices > 1 and self.comes(device, value)

    def holds(self, device: int, value: int) -> bool:
        """The device must hold this kept value."""
        if not self.layout.keep[value]:
            return False
        return self.layout.required[value] == device or self.layout.problem.devices == 1

    def used(self, device: int) -> list[int]:
        """Weights that an op may read there."""
        if not self.limited[device]:
            return []
        able, uses = self.layout.able, self.layout.uses
        return sorted({w for op, row in enumerate(uses) if device in able[op] for w in row})

    def moves(self, device: int, op: int) -> bool:
        """Some output of the op can be copied to or from the device."""
        made = self.layout.writes[op]
        return any(self.into[device][i] or self.out[device][i] for i in made)

    def freed(self, device: int, stage: int, op: int) -> list[int]:
        """Values that may be given back on the device after the op's place: its inputs where it
        runs, and its own outputs, made, copied or held there."""
        lists, runs = self.layout, self.runs(device, stage, op)
        there = list(lists.reads[op]) if runs else []
        there += [i for i in lists.writes[op] if self.comes(device, i)]
        return [
            i
            for i in dict.fromkeys(there)
            if not (self.holds(device, i) or self.outside(device, i))
        ]

    def outside(self, device: int, value: int) -> bool:
        """The value is an input that the caller holds there: it takes no room."""
        maker = self.layout.producer[value]
        return maker < self.layout.problem.host_inputs and device in self.layout.able[maker]

    def takes(self, device: int, op: int) -> list[int]:
        """Values whose room the op may take over."""
        return [i for i in self.layout.inplace[op] if not self.outside(device, i)]

    def columns(self, linear: bool) -> int:
        """How many columns the model has."""
        layout, lists, devices = self.layout, self.layout, self.layout.devices
        ops, count = layout.problem.ops, len(devices) * len(layout.members)
        for d in devices:
            count += len(self.used(d))
            for value, maker in enumerate(lists.producer):
                into, out = self.into[d][value], self.out[d][value]
                costly = [e for e in into if layout.copy[e][d][value] > 0]
                count += (ops - maker) * (bool(into) + out + linear * len(costly))
                count += self.comes(d, value) * (ops - 1 - maker) + self.chosen(d, value)
            for op in range(ops):
                for first, times in ((op, 1), (op + 1, ops - op - 1)):  # its own stage, later ones
                    runs = times > 0 and self.runs(d, first, op)
                    count += runs * times
                    if times and self.limited[d] and (runs or self.moves(d, op)):
                        count += times * (1 + len(self.freed(d, first, op)))
                        count += times * runs * len(self.takes(d, op))
        return count


class _Builder:
    def __init__(self, grid: Grid, linear: bool) -> None:
        self.grid, self.layout, self.linear = grid, grid.layout, linear
        self.lists, self.devices = grid.layout, grid.layout.devices
        name = "xengine-linear" if linear else "xengine"
        total = self.layout.problem.reference
        unit = total / SCALE if total > 0 else 1.0
        self.made = XengineModel(self.lists, unit, Model(name), layout=self.layout)
        self.model = self.made.model
        self.weights: list[dict[int, int]] = []

    def finish(self) -> XengineModel:
        ops = self.layout.problem.ops
        for stage in range(ops):
            self._columns(stage)
        self._lasting()
        for stage in range(ops):
            first = [(self.made.run[d, stage, stage], 1.0) for d in self.layout.able[stage]]
            self.model.row(first, lower=1.0, upper=1.0)
            self._held(stage)
            self._copies(stage)
            for device in self.devices:
                self._dependencies(device, stage)
                if self.grid.limited[device]:
                    self._memory(device, stage)
        self._arrived(ops - 1)
        return self.made

    def _columns(self, stage: int) -> None:
        grid, model, made = self.grid, self.model, self.made
        for d in self.devices:
            for op in range(stage + 1):
                if grid.runs(d, stage, op):
                    price = self.layout.cost[d][op] / made.unit
                    made.run[d, stage, op] = model.binary(price, f"R_{d}_{stage}_{op}")
            for value, maker in enumerate(self.lists.producer):
                key, label = (d, stage, value), f"{d}_{stage}_{value}"
                if maker < stage and grid.comes(d, value):
                    made.retain[key] = model.binary(label=f"S_{label}")
                if maker <= stage and grid.into[d][value]:
                    made.copy[key] = model.binary(label=f"K_{label}")
                if maker <= stage and grid.out[d][value]:
                    made.source[key] = model.binary(label=f"A_{label}")

    def _lasting(self) -> None:
        """What holds for all stages: hold devices, weights, groups."""
        model, layout, run = self.model, self.layout, self.made.run
        for value, kept in enumerate(layout.keep):
            places = [d for d in self.devices if self.grid.chosen(d, value)]
            for d in places:
                self.made.hold[d, value] = model.binary(label=f"H_{d}_{value}")
            if kept and places:
                chosen = [(self.made.hold[d, value], 1.0) for d in places]
                model.row(chosen, lower=1.0, upper=1.0)
        for d in self.devices:
            used = self.grid.used(d)
            self.weights.append({w: model.column(0.0, 1.0, label=f"W_{d}_{w}") for w in used})
        for (d, _, op), column in run.items():
            for weight in set(layout.uses[op]) & self.weights[d].keys():
                model.row([(self.weights[d][weight], 1.0), (column, -1.0)], lower=0.0)
        for group, ops in layout.members.items():
            home = [model.binary(label=f"G_{d}_{group}") for d in self.devices]
            self.made.group.update({(group, d): home[d] for d in self.devices})
            model.row([(column, 1.0) for column in home], lower=1.0, upper=1.0)
            for (d, _, op), column in run.items():
                if op in ops:
                    model.row([(home[d], 1.0), (column, -1.0)], lower=0.0)

    def _sources(self, device: int, stage: int, value: int, *, copies: bool = True) -> Terms:
        """Ways for a value to be on the device; kept values are made once."""
        made, maker = self.made, self.lists.producer[value]
        fresh = stage == maker or not self.layout.keep[value]
        run = made.run.get((device, stage, maker)) if fresh else None
        held = made.retain.get((device, stage, value))
        came = made.copy.get((device, stage, value)) if copies else None
        return [(column, 1.0) for column in (run, held, came) if column is not None]

    def _held(self, stage: int) -> None:
        """A kept value stays on its hold device from its first arrival there."""
        for value, kept in enumerate(self.layout.keep):
            for d in self.devices:
                later = self.made.retain.get((d, stage + 1, value))
                column = self.made.hold.get((d, value))
                if not kept or later is None or not (column or self.grid.holds(d, value)):
                    continue
                here = [(c, -1.0) for c, _ in self._sources(d, stage, value)]
                if column is None:
                    self.model.row([(later, 1.0), *here], lower=0.0)
                else:
                    self.model.row([(later, 1.0), *here, (column, -1.0)], lower=-1.0)

    def _arrived(self, last: int) -> None:
        """Kept values end on their hold device."""
        for value, kept in enumerate(self.layout.keep):
            for d in self.devices:
                column = self.made.hold.get((d, value))
                here = self._sources(d, last, value)
                if column is not None:
                    self.model.row([*here, (column, -1.0)], lower=0.0)
                elif kept and self.grid.holds(d, value):
                    self.model.row(here, lower=1.0)

    def _copies(self, stage: int) -> None:
        for value, maker in enumerate(self.lists.producer):
            source = {
                e: self.made.source[e, stage, value]
                for e in self.devices
                if (e, stage, value) in self.made.source
            }
            for e, column in source.items():
                here = self._sources(e, stage, value, copies=False)
                self.model.row([*here, (column, -1.0)], lower=0.0)
            if len(source) > 1 and maker <= stage:
                self.model.row([(column, 1.0) for column in source.values()], upper=1.0)
            for d in self.devices:
                came = self.made.copy.get((d, stage, value))
                if came is not None:
                    self._copy(d, value, came, source)

    def _copy(self, device: int, value: int, came: int, source: dict[int, int]) -> None:
        """One copy: it has a source, and its price."""
        model, links = self.model, self.grid.into[device][value]
        model.row([*((source[e], 1.0) for e in links), (came, -1.0)], lower=0.0)
        ways: Terms = []
        for e in links:
            price = self.layout.copy[e][device][value] / self.made.unit
            if price <= 0:
                ways.append((source[e], 1.0))
            elif self.linear:
                both = model.column(0.0, 1.0, price)
                model.row([(source[e], 1.0), (both, -1.0)], lower=0.0)
                ways.append((both, 1.0))
            else:
                model.quadratic_cost.append((source[e], came, price))
        if self.linear:
            model.row([*ways, (came, -1.0)], lower=0.0)

    def _dependencies(self, device: int, stage: int) -> None:
        lists, row = self.lists, self.model.row
        for op in range(stage + 1):
            run = self.made.run.get((device, stage, op))
            if run is not None:
                for value in lists.reads[op]:
                    row([*self._sources(device, stage, value), (run, -1.0)], lower=0.0)
        for value, maker in enumerate(lists.producer):
            here = self._sources(device, stage, value)
            later = self.made.retain.get((device, stage + 1, value))
            if later is not None:
                row([*here, (later, -1.0)], lower=0.0)
            if len(here) > 1 and maker <= stage:
                row(here, upper=1.0)

    def _memory(self, device: int, stage: int) -> None:
        lists, model, layout = self.lists, self.model, self.layout
        size, budget = layout.size[device], self.grid.budgets[device]
        scale = SCALE / max(1, budget)
        weight = layout.problem.weight[device]
        change: Terms = [(c, int(weight[w]) * scale) for w, c in self.weights[device].items()]
        change += [
            (self.made.retain[device, stage, value], size[value] * scale)
            for value in range(layout.problem.values)
            if (device, stage, value) in self.made.retain
        ]
        before: int | None = None
        for op in range(stage + 1):
            run = self.made.run.get((device, stage, op))
            if run is None and not self.grid.moves(device, op):
                continue
            new = [v for v in lists.writes[op] if not layout.keep[v] or op == stage]
            if run is not None:
                change.append((run, sum(size[value] for value in new) * scale))
            for value in lists.writes[op]:
                came = self.made.copy.get((device, stage, value))
                if came is not None:
                    change.append((came, size[value] * scale))
            use = model.column(label=f"U_{device}_{stage}_{op}")
            chain = [] if before is None else [(before, -1.0)]
            model.row([(use, 1.0), *chain, *((c, -a) for c, a in change)], lower=0.0, upper=0.0)
            free = self._free(device, stage, op)
            limit: Terms = [(use, 1.0)]
            if run is not None:
                limit.append((run, layout.work[device][op] * scale))
                limit += self._take(device, op, run, free, scale)
            model.row(limit, upper=(budget - int(layout.problem.fixed[device])) * scale)
            change = [(column, -size[value] * scale) for value, column in free.items()]
            before = use

    def _free(self, device: int, stage: int, op: int) -> dict[int, int]:
        """FREE columns after an op's place."""
        lists, model, made = self.lists, self.model, self.made
        freed = {}
        for value in self.grid.freed(device, stage, op):
            column = model.column(0.0, 1.0, label=f"FREE_{device}_{stage}_{value}_{op}")
            here: Terms
            if value in lists.reads[op]:
                here = [(made.run[device, stage, op], 1.0)]
            else:  # made, copied or held here at its own place
                here = self._sources(device, stage, value)
            model.row([*here, (column, -1.0)], lower=0.0)
            later = made.retain.get((device, stage + 1, value))
            held = made.hold.get((device, value))
            after = [made.run.get((device, stage, k)) for k in lists.readers[value] if k > op]
            for other in (later, held, *after):
                if other is not None:
                    model.row([(column, 1.0), (other, 1.0)], upper=1.0)
            freed[value] = column
        return freed

    def _take(self, device: int, op: int, run: int, free: dict[int, int], scale: float) -> Terms:
        model, size = self.model, self.layout.size[device]
        terms: Terms = []
        for value in self.grid.takes(device, op):
            column = model.column(0.0, 1.0)
            model.row([(column, 1.0), (free[value], -1.0)], upper=0.0)
            model.row([(column, 1.0), (run, -1.0)], upper=0.0)
            terms.append((column, -size[value] * scale))
        if len(terms) > 1:
            model.row([(column, 1.0) for column, _ in terms], upper=1.0)
        return terms
