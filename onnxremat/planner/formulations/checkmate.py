"""Checkmate's MILP: retain or recompute, stage by stage, with exact liveness.

After Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization",
MLSys 2020, section 4, with values apart from ops. For stages t, ops k <= t and values i of
producer p(i):

    min   sum_t sum_k C_k R[t,k]
    s.t.  R[t,t] = 1
          R[t,k] <= R[t,p(i)] + S[t,i]                       i in DEPS(k)
          S[t+1,i] <= S[t,i] + R[t,p(i)]
          R[t,p(i)] + S[t,i] <= 1                            (one copy)
          U[t,k] = U[t,k-1] - sum_{i in DEPS(k-1) + OUT(k-1)} M_i FREE[t,i,k-1]
                   + sum_{i in OUT(k)} M_i R[t,k],   U[t,-1] = fixed + sum_i M_i S[t,i]
          U[t,k] + W_k R[t,k] - sum_{i in INPLACE(k)} M_i TAKE[t,i,k] <= budget
          FREE[t,i,k] <= R[t,k], 1 - S[t+1,i], 1 - R[t,j]    j in USERS(i), k < j <= t
          TAKE[t,i,k] <= FREE[t,i,k],  sum_i TAKE[t,i,k] <= 1

Additions to the paper: workspace W, in-place takeover TAKE, several outputs, kept values
(S = 1 once made, never freed), ops that run once. FREE only helps, so upper bounds suffice and it
may be continuous. The optimum is over sequences that run each op at most once per stage in base
order; sequences outside that class can be faster at tight budgets.
"""

from __future__ import annotations

from onnxremat.planner.formulations.stages import SCALE, StageModel, may_run, time_unit
from onnxremat.planner.model import Model
from onnxremat.planner.problem_lists import ProblemLists

Terms = list[tuple[int, float]]


def build(lists: ProblemLists, budget: int) -> StageModel:
    """Checkmate's model for a budget in bytes."""
    made = StageModel(lists, time_unit(lists), Model("checkmate"))
    return _Builder(made, budget).finish()


class _Builder:
    def __init__(self, made: StageModel, budget: int) -> None:
        self.made, self.model, self.lists = made, made.model, made.lists
        self.budget, self.scale = budget, SCALE / max(1, budget)
        self.retain: dict[tuple[int, int], int] = {}

    def finish(self) -> StageModel:
        ops = self.lists.problem.ops
        for stage in range(ops):
            self._columns(stage)
        for stage in range(ops):
            self._dependencies(stage)
            self._memory(stage)
        return self.made

    def _columns(self, stage: int) -> None:
        lists, model = self.lists, self.model
        for op in range(stage + 1):
            if may_run(lists, stage, op):
                column = model.column(
                    float(op == stage), 1.0, lists.cost[0][op] / self.made.unit, integer=True,
                    label=f"R_{stage}_{op}",
                )  # fmt: skip
                self.made.run[0, stage, op] = column
        for value, maker in enumerate(lists.producer):
            if maker < stage:
                kept = float(lists.keep[value])
                self.retain[stage, value] = model.column(
                    kept, 1.0, integer=True, label=f"S_{stage}_{value}"
                )

    def _available(self, stage: int, value: int) -> Terms:
        run = self.made.run.get((0, stage, self.lists.producer[value]))
        held = self.retain.get((stage, value))
        return [(column, 1.0) for column in (run, held) if column is not None]

    def _dependencies(self, stage: int) -> None:
        lists, row = self.lists, self.model.row
        for op in range(stage + 1):
            run = self.made.run.get((0, stage, op))
            if run is not None:
                for value in lists.reads[op]:
                    row([*self._available(stage, value), (run, -1.0)], lower=0.0)
        for value in range(lists.problem.values):
            later = self.retain.get((stage + 1, value))
            if later is not None:
                row([*self._available(stage, value), (later, -1.0)], lower=0.0)
            both = self._available(stage, value)
            if len(both) == 2 and not lists.keep[value]:
                row(both, upper=1.0)

    def _memory(self, stage: int) -> None:
        lists, model = self.lists, self.model
        size, scale = lists.size[0], self.scale
        room = (self.budget - lists.problem.resident) * scale
        change: Terms = [
            (column, size[value] * scale)
            for (t, value), column in self.retain.items()
            if t == stage and size[value]
        ]
        before: int | None = None
        for op in range(stage + 1):
            run = self.made.run.get((0, stage, op))
            if run is None:
                continue
            new = [v for v in lists.writes[op] if not lists.keep[v] or op == stage]
            change.append((run, sum(size[value] for value in new) * scale))
            use = model.column(label=f"U_{stage}_{op}")
            chain = [] if before is None else [(before, -1.0)]
            model.row([(use, 1.0), *chain, *((c, -a) for c, a in change)], lower=0.0, upper=0.0)
            free = self._free(stage, op, run)
            limit: Terms = [(use, 1.0), (run, lists.work[0][op] * scale), *self._take(op, free)]
            model.row(limit, upper=room)
            change = [(column, -size[value] * scale) for value, column in free.items()]
            before = use

    def _free(self, stage: int, op: int, run: int) -> dict[int, int]:
        """FREE columns of the values that ``op`` reads or makes."""
        lists, model = self.lists, self.model
        freed = {}
        for value in {*lists.reads[op], *lists.writes[op]}:
            if lists.keep[value]:
                continue
            column = model.column(0.0, 1.0, label=f"FREE_{stage}_{value}_{op}")
            model.row([(column, 1.0), (run, -1.0)], upper=0.0)
            later = self.retain.get((stage + 1, value))
            if later is not None:
                model.row([(column, 1.0), (later, 1.0)], upper=1.0)
            for reader in lists.readers[value]:
                again = self.made.run.get((0, stage, reader))
                if reader > op and again is not None:
                    model.row([(column, 1.0), (again, 1.0)], upper=1.0)
            freed[value] = column
        return freed

    def _take(self, op: int, free: dict[int, int]) -> Terms:
        """TAKE columns: bytes that the output of ``op`` takes over."""
        lists, model = self.lists, self.model
        terms: Terms = []
        for value in lists.inplace[op]:
            column = model.column(0.0, 1.0)
            model.row([(column, 1.0), (free[value], -1.0)], upper=0.0)
            terms.append((column, -lists.size[0][value] * self.scale))
        if len(terms) > 1:
            model.row([(column, 1.0) for column, _ in terms], upper=1.0)
        return terms
