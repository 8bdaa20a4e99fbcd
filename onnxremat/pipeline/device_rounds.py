"""Plan over devices, carry out, look; again for less where a budget was missed, and with costs
corrected where a trial run took something else than thought."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from math import inf, isinf

from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.errors import NO_FIT, InfeasibleError, NoPlanError, OverBudgetError
from onnxremat.execute.calibration import corrected, tried
from onnxremat.execute.deployment import Deployment, deploy
from onnxremat.execute.device_memory import DeviceBytes
from onnxremat.execute.inside import Known
from onnxremat.pipeline.device_plan import DeviceModel, device_model
from onnxremat.pipeline.prepare import Prepared
from onnxremat.pipeline.verify_devices import DeviceVerification, verify_devices
from onnxremat.planner.incumbent import NO_LIMIT
from onnxremat.planner.makespan import makespan
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.plan_steps import provenance_of
from onnxremat.planner.problem import Problem
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import seconds
from onnxremat.planner.solution import Certificate, Solution, Status
from onnxremat.units import format_bytes

ROUNDS = 8  # plans for one table of costs, each for less than the one before
TRIALS = 3  # plans that are tried out
NEAR = 0.03  # share by which a trial may differ from the costs that a plan was made with
PRICE, DEARER = 3e-4, 4.0  # seconds per partition of a provider that holds buffers for good
MOST = 2e-2  # above which it gets none


@dataclass(frozen=True)
class Carried:
    """A plan that was carried out."""

    solution: Solution
    made: Deployment
    verification: DeviceVerification | None
    tables: Mapping[str, CostTable]


@dataclass
class DeviceRounds:
    """One model on one machine within limits.

    Attributes:
        prepared: the model, its inputs and settings.
        pins: (pattern of op names or types, device).
        limits: bytes per device, for those that have a limit.
        objective: ``time`` or ``makespan``.
        runnable: all devices are here, and there are inputs to run on.
        say: told what goes on.
        during: entered while a trial runs.
        aims: bytes per device that plans are made for, once carrying one out took more.
        price: seconds per partition, likewise, on providers whose partitions hold buffers for good.
    """

    prepared: Prepared
    machine: Machine
    pins: Sequence[tuple[str, str]]
    limits: Mapping[str, int]
    options: PlanOptions
    objective: str
    runnable: bool
    say: Callable[[str], None]
    during: Callable[[], AbstractContextManager[object]]
    aims: dict[str, float] = field(default_factory=dict)
    price: dict[str, float] = field(default_factory=dict)
    known: Known = field(default_factory=dict)

    def model(self, tables: Mapping[str, CostTable]) -> DeviceModel:
        """The planner's numbers, under some costs."""
        return device_model(
            self.prepared.graph, self.machine, tables, self.pins,
            pairs=self.prepared.in_place, limits=self.limits,
        )  # fmt: skip

    def best(self, tables: Mapping[str, CostTable], given: Solution | None = None) -> Carried:
        """The plan that is quickest when tried out, or the only one.

        Args:
            given: the solution to carry out, instead of planning.

        Raises:
            InfeasibleError, NoPlanError, OverBudgetError: the limits cannot be kept.
        """
        best = last = self._tried(self.within(tables, given))
        if given or self.options.method.formulation:  # the plan of that model, with its costs
            return best
        for _ in range(TRIALS - 1):
            if not last.made.tried or self.options.stopped or _as_thought(last.made):
                break
            opaque = {device.name: device.opaque for device in self.machine.devices}
            costs = corrected(last.tables, last.made, opaque=opaque)
            try:
                found = self.within(costs, warm=best.solution.schedule)
            except NO_FIT:
                break
            same = found.made.plan.steps == best.made.plan.steps
            last = _tried_like(found, best.made) if same else self._tried(found)
            if same or last.made.makespan < best.made.makespan:
                best = last
            if same:
                break
        return best

    def within(
        self,
        tables: Mapping[str, CostTable],
        given: Solution | None = None,
        warm: Schedule | None = None,
    ) -> Carried:
        """A plan that keeps the limits when it is carried out; see :meth:`best`.

        Args:
            warm: a schedule to start from.
        """
        model = self.model(tables)
        first: Solution | None = None
        over: dict[str, int] = {}
        for _ in range(1 if given else ROUNDS):
            solution = given or self._planned(model, tables, first, warm)
            if solution.schedule is None:
                if first is not None:
                    break
                raise self._refusal(model, solution)
            first = first or solution
            solution = proven(model.problem, solution, first, self.options.gap)
            made = self._deployed(model, tables, solution)
            over = _excess(made.predicted, self.limits)
            if not over:
                if not self.runnable or self.prepared.feeds is None:
                    return Carried(solution, made, None, tables)
                self.say("running the partitions")
                checked = verify_devices(made, self.prepared.feeds)
                over = _excess(checked.measured, self.limits)
                if not over:
                    return Carried(solution, made, checked, tables)
            self._lower(made, solution, over)
        worst = max(over, key=over.__getitem__)
        raise OverBudgetError(
            f"no plan keeps device '{worst}' within {format_bytes(self.limits[worst])} when "
            "carried out",
            why=f"the last one needs {format_bytes(self.limits[worst] + over[worst])}: partitions "
            "hold their inputs until they are done",
            hint=f"--budget {worst}={self.limits[worst] + over[worst]}",
            excess=over[worst],
        )

    def _planned(
        self,
        model: DeviceModel,
        tables: Mapping[str, CostTable],
        first: Solution | None,
        warm: Schedule | None,
    ) -> Solution:
        """For all of the limits first, which proves something of them; then for what was learnt."""
        self.say("planning")
        limit = self.options.time_limit
        if first is None:
            share = limit if warm is None else min(limit, max(5.0, limit / 2))
            return self._solved(model, self.limits, share, warm)
        priced = self.model(self._priced(tables)) if self.price else model
        aims = {**self.limits, **self.aims}
        found = self._solved(priced, aims, min(limit, max(5.0, first.plan_seconds / 4)), warm)
        if found.schedule is None or not self.price:
            return found
        return replace(
            found,
            time=seconds(model.problem, found.schedule),
            makespan=makespan(model.problem, found.schedule, self._numbers()),
        )

    def _numbers(self) -> list[int]:
        """Bytes per device that plans are made for."""
        aims = {**self.limits, **self.aims}
        return [int(aims.get(name, NO_LIMIT)) for name in self.machine.names]

    def _lower(self, made: Deployment, solution: Solution, over: Mapping[str, int]) -> None:
        """Plan for less from here on. A partition of a provider that compiles it holds its buffers
        for good: there, fewer partitions are what helps, and their price goes up."""
        for name, excess in over.items():
            parts = sum(part.device == name for part in made.parts.partitions)
            if self.machine.device(name).opaque and parts > 1:
                price = DEARER * self.price.get(name, PRICE / DEARER)
                self.price[name] = price if price <= MOST else inf
            else:
                peak = float(solution.peaks[self.machine.names.index(name)])
                self.aims[name] = min(self.aims.get(name, inf), peak) - excess - 256

    def _priced(self, tables: Mapping[str, CostTable]) -> dict[str, CostTable]:
        """With what partitions cost on devices that can hold few of them; without devices that
        can hold none, unless something runs nowhere else."""
        none = [name for name, price in self.price.items() if isinf(price)]
        rest = [table.seconds.keys() for name, table in tables.items() if name not in none]
        if none and set().union(*rest) >= {op.name for op in self.prepared.graph.ops}:
            tables = {n: replace(t, seconds={}) if n in none else t for n, t in tables.items()}
        return {
            name: replace(table, call=table.call + min(MOST, self.price.get(name, 0.0)))
            for name, table in tables.items()
        }

    def _tried(self, found: Carried) -> Carried:
        """With the seconds of a trial run, where it can be run."""
        if found.verification is None or self.prepared.feeds is None:
            return found
        self.say("trying it out")
        with self.during():
            made = tried(found.made, self.prepared.feeds, stop=self.options.stop)
        return replace(found, made=made)

    def _solved(
        self, model: DeviceModel, aims: Mapping[str, float], limit: float, warm: Schedule | None
    ) -> Solution:
        budgets = [aims.get(name, inf) for name in self.machine.names]
        options = replace(
            self.options.lasting(limit), objective=self.objective,
            fixed_order=self.prepared.settings.fixed_order,
        )  # fmt: skip
        return plan_by(model.problem, budgets, options, warm)

    def _deployed(
        self, model: DeviceModel, tables: Mapping[str, CostTable], solution: Solution
    ) -> Deployment:
        assert solution.schedule is not None
        provenance = replace(
            provenance_of(solution),
            cost_source="; ".join(f"{name}: {t.source}" for name, t in tables.items()),
            settings=self.prepared.settings.to_json(),
        )
        plan = model.plan(solution.schedule, provenance, self._numbers())
        return deploy(
            self.prepared.graph, plan, self.machine, tables, limits=self.limits,
            pairs=self.prepared.in_place, folder=self.prepared.folder, insist=False,
            known=self.known,
        )  # fmt: skip

    def _refusal(self, model: DeviceModel, solution: Solution) -> InfeasibleError | NoPlanError:
        name = self.prepared.name
        text = ", ".join(f"{device}={format_bytes(n)}" for device, n in self.limits.items())
        why = "; ".join(solution.notes) or "no placement, order, recomputation or move fits"
        why = re.sub(r"\bop (\d+)", lambda found: f"op '{model.names.ops[int(found[1])]}'", why)
        hint = "give one of the devices more, or add a device"
        if solution.status is Status.INFEASIBLE:
            return InfeasibleError(f"{name} cannot run within {text}", why=why, hint=hint)
        return NoPlanError(
            f"no plan found for {name} within {text}", why=why,
            hint=f"{hint}, or more time: --time-limit",
        )  # fmt: skip


def _tried_like(found: Carried, other: Deployment) -> Carried:
    """With the trial of another deployment of the same plan."""
    return replace(found, made=replace(found.made, tried=other.tried, around=other.around))


def _as_thought(made: Deployment) -> bool:
    """A trial took what the costs of ops had told."""
    return abs(made.makespan_of_costs / made.makespan - 1) <= NEAR


def _excess(found: Mapping[str, DeviceBytes], limits: Mapping[str, int]) -> dict[str, int]:
    """Bytes by which each device that is over its limit is over it."""
    return {
        name: found[name].peak - limit for name, limit in limits.items() if found[name].peak > limit
    }


def proven(problem: Problem, solution: Solution, first: Solution, gap: float) -> Solution:
    """The solution with what is proven of the whole budgets: a later round had smaller ones."""
    if solution is first or first.schedule is None or solution.schedule is None:
        return solution
    proof = first.certificate
    if not proof.any_order and first.schedule.first_runs != solution.schedule.first_runs:
        proof = Certificate(problem.least_seconds, "least run", True)
    found = replace(
        solution,
        certificate=replace(proof, bound=min(proof.bound, solution.value)),
        makespan_bound=min(first.makespan_bound, solution.makespan),
        plan_seconds=first.plan_seconds + solution.plan_seconds,
        notes=(*first.notes, "carried out, that plan took more than a budget: planned for less"),
    )
    return replace(found, status=Status.OPTIMAL if found.gap <= gap else Status.FEASIBLE)
