"""Several devices to plan for: the planner's numbers, and plans cut to partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isinf

from onnxremat.cost.table import CostTable
from onnxremat.errors import InfeasibleError, NoPlanError
from onnxremat.execute.deployment import deploy
from onnxremat.execute.inside import Known
from onnxremat.execute.partition_cuts import Terms
from onnxremat.ort.profile import Feeds
from onnxremat.pipeline.artifact import Artifact
from onnxremat.pipeline.closed_loop import Aim
from onnxremat.pipeline.devices.device_plan import DeviceModel, device_model
from onnxremat.pipeline.devices.kept_of_ops import seen_per_byte
from onnxremat.pipeline.devices.over_devices import OverDevices
from onnxremat.pipeline.devices.site import Site
from onnxremat.pipeline.limits import on_top
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Refusal
from onnxremat.planner.bounds import quick_makespan_bound
from onnxremat.planner.formulations.extract import without_unread
from onnxremat.planner.incumbent import NO_LIMIT
from onnxremat.planner.makespan import makespan
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.plan_steps import provenance_of
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.reasons import named
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import peaks, seconds
from onnxremat.planner.solution import Certificate, Solution, Status, unsolved
from onnxremat.units import format_bytes

PRICE, DEARER = 3e-4, 4.0  # seconds per partition of a provider that holds buffers for good
MOST = 2e-2  # above which it gets none
ROOM = 1.2  # times what was missing for a slab that is planned for less


@dataclass(frozen=True)
class SeveralDevices:
    """A model to run on a machine; see :class:`~onnxremat.pipeline.closed_loop.Target`.

    Attributes:
        tables: costs per device that computes.
        gap: share of the reference time at which found and bound count as equal.
        known: what partitions hold, kept from plan to plan.
        learned: by an earlier plan, of partitions that hold their buffers.
    """

    prepared: Prepared
    site: Site
    tables: Mapping[str, CostTable]
    log: Phases
    gap: float = 5e-4
    known: Known = field(default_factory=dict)
    learned: Aim = field(default_factory=lambda: Aim({}))

    @property
    def limits(self) -> Mapping[str, int]:
        """Bytes per device that has a limit."""
        return self.site.limits

    @property
    def aim(self) -> Aim:
        """The limits, with what was learned."""
        return replace(self.learned, limits={**self.limits, **self.learned.limits}, rounds=0)

    def roomier(self, crowded: int) -> SeveralDevices:
        """The same with plans for less, so that one slab for all sessions of the processor fits.

        Args:
            crowded: bytes by which it was over the limits of its devices.
        """
        devices = [self.site.machine.device(name) for name in self.aim.limits]
        names = [each.name for each in devices if each.in_host_memory and not each.opaque]
        less = int(ROOM * crowded / max(1, len(names)))
        limits = {name: max(1, self.aim.limits[name] - less) for name in names}
        return replace(self, learned=replace(self.learned, limits=limits))

    @property
    def beside(self) -> int:
        """Nothing: limits of devices are their whole budgets."""
        return 0

    def limits_for(self, artifact: OverDevices) -> Mapping[str, int]:
        """The same for whatever a plan became."""
        return self.site.limits

    @cached_property
    def feeds(self) -> Feeds | None:
        """What plans are run on, None where a device is not here."""
        return None if self.site.absent else self.prepared.feeds

    @cached_property
    def model(self) -> DeviceModel:
        """The planner's numbers."""
        prepared = self.prepared
        return device_model(prepared.graph, self.site, self.tables, prepared.in_place)

    def _model(self, aim: Aim) -> DeviceModel:
        """With what was learned of partitions that hold their buffers."""
        if not (aim.price or aim.per_byte):
            return self.model
        prepared, tables = self.prepared, self._priced(aim.price)
        return device_model(prepared.graph, self.site, tables, prepared.in_place, aim.per_byte)

    def under(self, tables: Mapping[str, CostTable]) -> SeveralDevices:
        """The same with other costs."""
        return replace(self, tables=tables)

    def of(self, prepared: Prepared) -> SeveralDevices:
        """The same of the model in parts; what its sessions take besides is on top of shares."""
        site, limits = self.site, dict(self.limits)
        before = on_top(self.prepared, site.machine, site.counted)
        now = on_top(prepared, site.machine, site.counted)
        for name in site.shares & limits.keys():
            limits[name] += now[name] - before[name]
        site = replace(site, limits=limits)
        return replace(self, prepared=prepared, site=site, known={}, learned=Aim({}))

    def alone(self, name: str) -> SeveralDevices:
        """The same with one device that computes."""
        tables = {n: t if n == name else replace(t, seconds={}) for n, t in self.tables.items()}
        site = replace(self.site.alone(name), objective="time")  # nothing runs beside it
        return replace(self, site=site, tables=tables)

    @property
    def hopeless(self) -> bool:
        """Weights and results, which are there in any parts, are more than all devices hold."""
        room = sum(self.limits.get(name, inf) for name in self.site.machine.names)
        return room < self.prepared.floor.fixed

    def budgets(self, aim: Aim) -> list[int]:
        """Bytes per device that a plan is made for."""
        names = self.site.machine.names
        return [int(aim.limits.get(name, NO_LIMIT)) for name in names]

    def solve(self, aim: Aim, options: PlanOptions, warm: Schedule | None = None) -> Solution:
        """Plan; see :class:`~onnxremat.pipeline.closed_loop.Target`."""
        model = self._model(aim)
        budgets = [aim.limits.get(name, inf) for name in self.site.machine.names]
        options = replace(
            options, objective=self.site.objective, fixed_order=self.prepared.settings.fixed_order
        )
        found = plan_by(model.problem, budgets, options, warm)
        whole = model is self.model and (aim.rounds or dict(aim.limits) == dict(self.limits))
        return self._read(found if whole else self._unproven(found, aim), aim)

    def _unproven(self, found: Solution, aim: Aim) -> Solution:
        """An answer with the numbers of the model without what was learned, of which a proof with
        it says nothing."""
        problem = self.model.problem
        unknown = replace(unplanned(problem), notes=found.notes)
        if self.site.objective == "time":
            proof = Certificate(problem.least_seconds, "least run", any_order=True)
            unknown = replace(unknown, certificate=proof)
        if found.schedule is None:
            return unknown
        return bounded(problem, self._judged(found, found.schedule, aim), unknown, self.gap)

    def _read(self, found: Solution, aim: Aim) -> Solution:
        """Without first runs of which nothing is read; where some go, that is another order, of
        which a proof for one order says nothing."""
        problem, before = self.model.problem, found.schedule
        if before is None or self.prepared.settings.fixed_order:
            return found
        after = without_unread(ProblemLists(problem), before, first_runs=True)
        if after.steps == before.steps:
            return found
        return bounded(problem, self._judged(found, after, aim), found, self.gap)

    def _judged(self, found: Solution, schedule: Schedule, aim: Aim) -> Solution:
        """An answer with a schedule of its own or another, and what that takes."""
        problem = self.model.problem
        return replace(
            found,
            schedule=schedule,
            time=seconds(problem, schedule),
            makespan=makespan(problem, schedule, self.budgets(aim)),
            peaks=tuple(int(most) for most in peaks(problem, schedule)),
        )

    def start(self, found: Solution) -> Schedule | None:
        """Its schedule."""
        return found.schedule

    def build(self, aim: Aim, found: Solution, first: Solution) -> OverDevices:
        """Cut to partitions that keep the limits, where that can be."""
        found = proven(self.model.problem, found, first, self.gap)
        assert found.schedule is not None
        provenance = provenance_of(found)
        provenance = replace(
            provenance,
            cost_source="; ".join(f"{name}: {t.source}" for name, t in self.tables.items()),
            settings=self.prepared.settings.to_json(),
            notes=(*self.prepared.notes, *provenance.notes),
        )
        plan = self.model.plan(found.schedule, provenance, self.budgets(aim))
        made = deploy(
            self.prepared.graph, plan, self.site.machine, self.tables,
            self.terms(self.limits),
            insist=False,
        )  # fmt: skip
        return OverDevices(made, found, self.tables, self.model.problem.alone)

    def terms(self, limits: Mapping[str, int]) -> Terms:
        """What partitions have to suit."""
        prepared, counted = self.prepared, self.site.counted
        return Terms(limits, prepared.in_place, prepared.folder, self.known, counted)

    def lower(self, aim: Aim, found: Solution, artifact: Artifact, over: Mapping[str, int]) -> Aim:
        """Plan for less from here on. A partition of a provider that compiles it holds its buffers
        for good. There, what it was seen to hold is planned with; and fewer partitions are what
        helps: their price goes up, at first to what they gain."""
        assert isinstance(artifact, OverDevices)
        assert found.schedule is not None
        machine, parts = self.site.machine, artifact.made.parts.partitions
        planned = dict(zip(machine.names, map(float, found.peaks), strict=True))
        opaque = [name for name in over if machine.device(name).opaque]
        price, per_byte = dict(aim.price), dict(aim.per_byte)
        for name in opaque:
            held = self.limits[name] + over[name]
            device = machine.names.index(name)
            seen = seen_per_byte(self.model.problem, found.schedule, device, held)
            per_byte[name] = max(seen, per_byte.get(name, 0.0))
            count = sum(part.device == name for part in parts)
            if count > 1:
                dearer = DEARER * price[name] if name in price else self._gained(found) / count
                price[name] = max(PRICE, dearer) if dearer <= MOST else inf
        lower = aim.less(planned, {name: over[name] for name in over if name not in opaque})
        return replace(lower, price=price, per_byte=per_byte)

    def _gained(self, found: Solution) -> float:
        """Seconds by which a plan is quicker than the quickest device alone; 0 where it is not, or
        none can run all ops."""
        return max(0.0, (self.model.problem.alone or 0.0) - found.value)

    def refusal(self, found: Solution) -> InfeasibleError | NoPlanError:
        """Why no device can do it. What is proven for the order of the graph alone, which is where
        formulations look, is no proof where others may be taken."""
        name, ops = self.prepared.name, self.model.names.ops
        text = ", ".join(f"{device}={format_bytes(n)}" for device, n in self.limits.items())
        why = "; ".join(named(note, [f"op '{op}'" for op in ops]) for note in found.notes)
        hint = "give one of the devices more, or add a device"
        if found.status is Status.INFEASIBLE:
            proof = found.certificate
            if proof.any_order or self.prepared.settings.fixed_order:
                why = why or "no placement, order, recomputation or move fits"
                what = f"{name} cannot run within {text}"
                return Refusal(what, why, proven=True, first=hint).error()
            why = "; ".join(filter(None, (why, "none fits in the order of the graph; others may")))
        return Refusal(
            f"no plan found for {name} within {text}", why or "none was found in time",
            proven=False, first=f"{hint}, or more time: --time-limit",
        ).error()  # fmt: skip

    def _priced(self, price: Mapping[str, float]) -> dict[str, CostTable]:
        """With what partitions cost on devices that can hold few of them; without devices that
        can hold none, unless something runs nowhere else."""
        tables = dict(self.tables)
        none = [name for name, each in price.items() if isinf(each)]
        rest = [table.seconds.keys() for name, table in tables.items() if name not in none]
        if none and set().union(*rest) >= {op.name for op in self.prepared.graph.ops}:
            tables = {n: replace(t, seconds={}) if n in none else t for n, t in tables.items()}
        return {
            name: replace(table, call=table.call + min(MOST, price.get(name, 0.0)))
            for name, table in tables.items()
        }


def unplanned(problem: Problem) -> Solution:
    """What holds of all plans over the devices, before any was looked for."""
    least, why = quick_makespan_bound(problem)
    proof = Certificate(least, why, any_order=True)
    return replace(unsolved(Status.UNKNOWN, proof), makespan_bound=least)


def proven(problem: Problem, solution: Solution, first: Solution, gap: float) -> Solution:
    """The solution with what is proven of the whole budgets: a later round had smaller ones."""
    if solution is first or first.schedule is None or solution.schedule is None:
        return solution
    return replace(
        bounded(problem, solution, first, gap),
        plan_seconds=first.plan_seconds + solution.plan_seconds,
        notes=(*first.notes, "carried out, that plan took more than a budget: planned for less"),
    )


def bounded(problem: Problem, solution: Solution, other: Solution, gap: float) -> Solution:
    """A solution that has a schedule, with what another one proves of it. A proof for one order of
    first runs says nothing of another."""
    trivial = Certificate(problem.least_seconds, "least run", any_order=True)
    proof = other.proof_of(solution.schedule, trivial)
    found = replace(
        solution,
        certificate=replace(proof, bound=min(proof.bound, solution.value)),
        makespan_bound=min(other.makespan_bound, solution.makespan),
    )
    return replace(found, status=Status.OPTIMAL if found.gap <= gap else Status.FEASIBLE)
