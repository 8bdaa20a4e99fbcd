"""Schedules to plans that name ops and tensors, and back.

In a plan, ``copy`` counts the runs of an op over all devices; the tensors a run makes carry its
number, and so do the transfers of them. Every tensor is freed on each device after its last step
there, except what is held to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxremat.errors import UsageError
from onnxremat.planner.problem import ANY, Problem
from onnxremat.planner.schedule import Schedule, default_placement
from onnxremat.planner.schedule import Step as DeviceStep
from onnxremat.planner.semantics import ledger
from onnxremat.planner.solution import Solution
from onnxremat.schedule.plan import Compute, Free, Plan, Provenance, Step, Transfer


@dataclass(frozen=True)
class Names:
    """What a problem's ids are called in a graph.

    Attributes:
        ops: per op; those of the leading ``given`` ops are never used.
        values: tensor per value.
    """

    ops: Sequence[str]
    values: Sequence[str]


def to_plan(
    problem: Problem, schedule: Schedule, names: Names, provenance: Provenance | None = None
) -> Plan:
    """The plan of a schedule: runs, transfers, and frees after the last step that needs a tensor.

    Raises:
        InvalidScheduleError: the schedule cannot be carried out.
    """
    book = ledger(problem, schedule)
    dying: list[list[int]] = [[] for _ in range(len(schedule.steps) + 1)]
    for number, instance in enumerate(book.instances):
        dying[instance.death].append(number)
    runs = [0] * problem.ops
    copy = [0] * len(book.instances)  # which run made the contents of each instance
    outside: set[int] = set()  # instances of graph inputs at home: the caller's
    steps: list[Step] = []
    for step, (item, device, source) in enumerate(schedule.steps):
        where = problem.names[device]
        for made in book.made[step]:
            copy[made] = runs[item] if source < 0 else copy[book.read[step][0]]
        if source >= 0:
            number = copy[book.read[step][0]]
            steps.append(Transfer(names.values[item], problem.names[source], where, number))
        elif item < problem.host_inputs:
            outside.update(book.made[step])
        else:
            steps.append(Compute(names.ops[item], runs[item], where))
            runs[item] += 1
        steps += [
            Free(names.values[i.value], copy[n], problem.names[i.device])
            for n in dying[step]
            for i in [book.instances[n]]
            if n not in outside
        ]
    return Plan(tuple(steps), provenance or Provenance())


def provenance_of(solution: Solution) -> Provenance:
    """What a solution says about itself, for a plan; budgets and hashes are the caller's."""
    certificate = solution.certificate
    return Provenance(
        planner=solution.planner,
        status=solution.status.value,
        bound=certificate.bound,
        bound_kind=certificate.kind,
        any_order=certificate.any_order,
        staged=certificate.staged,
        seconds=solution.value,
        store_all_seconds=solution.reference,
        plan_seconds=solution.plan_seconds,
        notes=solution.notes,
    )


def from_plan(problem: Problem, plan: Plan, names: Names) -> Schedule:
    """The schedule of a plan; results are held where the plan never frees them.

    Raises:
        UsageError: the plan names a device, op or tensor that the problem does not have.
    """
    reader = _PlanReader(problem, names)
    for step in plan.steps:
        reader.take(step)
    return reader.schedule()


class _PlanReader:
    def __init__(self, problem: Problem, names: Names) -> None:
        self.problem, self.writes = problem, problem.writes.lists()
        self.ids = {
            "op": {n: op for op, n in enumerate(names.ops) if op >= problem.host_inputs},
            "tensor": {n: value for value, n in enumerate(names.values)},
            "device": {n: device for device, n in enumerate(problem.names)},
        }
        self.steps = [DeviceStep(op, problem.runs_on(op)[0]) for op in range(problem.host_inputs)]
        self.ran: set[int] = set()
        self.there: dict[tuple[int, int], bool] = {}  # (value, device) -> it is never freed

    def take(self, step: Step) -> None:
        if isinstance(step, Free):
            self.there[self._id("tensor", step.tensor), self._id("device", step.device)] = False
        elif isinstance(step, Transfer):
            value, target = self._id("tensor", step.tensor), self._id("device", step.target)
            self.steps.append(DeviceStep(value, target, self._id("device", step.source)))
            self.there[value, target] = True
        else:
            op, device = self._id("op", step.op), self._id("device", step.device)
            self.steps.append(DeviceStep(op, device))
            if op not in self.ran:  # kept values are made once
                self.there.update({(value, device): True for value in self.writes[op]})
            self.ran.add(op)

    def schedule(self) -> Schedule:
        hold = list(default_placement(self.problem, self.steps))
        free = self.problem.keep & (self.problem.required == ANY)
        for (value, device), held in self.there.items():
            if held and free[value]:
                hold[value] = device
        return Schedule(tuple(self.steps), tuple(hold))

    def _id(self, kind: str, name: str) -> int:
        if name not in self.ids[kind]:
            raise UsageError(
                f"the plan names {kind} '{name}', which the problem does not have",
                hint="plan again: the plan belongs to another model or machine",
            )
        return self.ids[kind][name]
