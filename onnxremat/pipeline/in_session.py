"""One session on the processor: the planner's numbers, the plan as a model, the model's run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import onnx

from onnxremat.errors import InfeasibleError, NoPlanError, UnsupportedError
from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.unforeseen import SHOWN
from onnxremat.memory.native import missing
from onnxremat.memory.packing import unused
from onnxremat.ort.profile import Feeds, Profile, as_profiled, named_outputs
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.pipeline.artifact import CPU, Check, Kind, Verified, excess
from onnxremat.pipeline.asked import Asked
from onnxremat.pipeline.bench import Contender, InSession
from onnxremat.pipeline.closed_loop import Aim
from onnxremat.pipeline.lean_weights import said_of_inputs
from onnxremat.pipeline.limits import Limit
from onnxremat.pipeline.original.shared_buffers import order_check
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import unexplained
from onnxremat.pipeline.session_run import SessionRun, order_of, sizes_of
from onnxremat.pipeline.time_left import no_time
from onnxremat.planner.ladder import solve_in_order
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.reduce import Reduced
from onnxremat.planner.semantics import seconds
from onnxremat.planner.solution import Certificate, Solution
from onnxremat.rewrite.emit import Rewritten, rewrite
from onnxremat.rewrite.unpacked import beyond
from onnxremat.schedule.expand import settled
from onnxremat.schedule.plan import Plan, Provenance, graph_hash
from onnxremat.schedule.simulate import Timeline, simulate
from onnxremat.schedule.updates import updates_last
from onnxremat.session.compare import Difference, compare
from onnxremat.session.measure import Measurement, Running, compared, measure, predict
from onnxremat.session.repeats import Repeats, drawn_outputs, repeats, why, writing_over


@dataclass(frozen=True)
class InOneSession:
    """A plan rewritten to one model: an :class:`~onnxremat.pipeline.artifact.Artifact`.

    Attributes:
        rewritten: the graph as it runs, and its plan.
        options: session options the plan is made for.
        folder: where external weights are.
        scratch, times: bytes of workspace and seconds per op.
        weights: resident bytes of the weights, None where it was read from a file.
        file: where it lies, None for a model in memory.
        ran: inputs it was run on already, the options, and that run.
        beside: bytes beside weights and values that its budget counts.
    """

    rewritten: Rewritten
    options: Options
    folder: Path | None = None
    scratch: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    weights: int | None = None
    file: Path | None = None
    ran: tuple[Feeds, Options, Profile] | None = field(default=None, repr=False)
    beside: int = 0

    loaded: ClassVar[bool] = False  # the graph is what onnxruntime makes of the model at load

    @property
    def graph(self) -> Graph:
        """The rewritten graph, in planned order."""
        return self.rewritten.graph

    @property
    def plan(self) -> Plan:
        return self.rewritten.plan

    @property
    def seconds(self) -> float:
        """Planned compute seconds."""
        return self.plan.provenance.seconds

    @cached_property
    def timeline(self) -> Timeline:
        """Predicted bytes at every op."""
        return predict(
            self.graph, self.options, scratch=self.scratch, seconds=self.times,
            weights=self.weights,
        )  # fmt: skip

    def opened_in(self, limit: int) -> Self:
        """The same, to be opened within ``limit`` bytes of weights and values: of a weight that
        several kernels pack there are two copies for a moment, so those for which there is no room
        are not packed."""
        unpacked = beyond(self.graph, limit - self.timeline.weight_bytes)
        if unpacked == self.rewritten.unpacked:
            return self
        which = "1 weight is" if len(unpacked) == 1 else f"{len(unpacked)} weights are"
        said = f"{which} not packed: several kernels read each, and a second packed copy does not "
        said += "fit while the session is opened, for which they are listed as inputs (onnxruntime "
        said += "warns of that); products with them take longer"
        made = replace(self, rewritten=replace(self.rewritten, unpacked=unpacked), ran=None)
        return made.told(notes=(*self.plan.provenance.notes, said))

    @cached_property
    def unused(self) -> int:
        """Bytes that no value has when most are live, since values of very different lives and
        sizes leave gaps at planned addresses."""
        if self.weights is None or self.loaded or missing():
            return 0
        steps = enumerate(self.timeline.scratch)
        rows = [(size, first, last) for _, first, last, size in self.timeline.buffers if size]
        rows += [(size, step, step) for step, size in steps if size]
        return unused(*np.array(rows, np.int64).reshape(-1, 3).T)

    def predict(self) -> Mapping[str, int]:
        return {} if self.weights is None else {CPU: self.timeline.peak + self.unused}

    def measure(self, feeds: Feeds) -> SessionRun:
        return SessionRun(self, feeds)

    def under(self, options: Options, feeds: Feeds) -> Measurement:
        """One run under session options."""
        running = Running(self.graph, self.scratch, self.times, self.folder, self.loaded)
        found = self._found(options, feeds)
        if found is not None:
            return compared(running, found, options)
        return measure(running, self.file or self.rewritten.model(), feeds, options)

    def _found(self, options: Options, feeds: Feeds) -> Profile | None:
        """The run that was made already, where it is of these inputs and options."""
        if self.ran is None:
            return None
        inputs, under, ran = self.ran
        return ran if inputs is feeds and as_profiled(under) == as_profiled(options) else None

    def verified(self, prepared: Prepared, run: Any) -> Verified:
        """Outputs against the same graph without recomputation, and the order that was planned."""
        assert isinstance(run, SessionRun)
        assert prepared.feeds is not None
        _refuse_overwritten(prepared)
        reference = prepared.outputs
        if reference is None and run.short:
            assert prepared.baseline is not None
            same = compare(run.tuned.outputs, prepared.baseline.outputs)
            text = f"output '{same.output}' differs by {same.worst:.2g} from the original's"
            return self._checked(run, same, Check(Kind.OUTPUTS, "same outputs", same.ok, text))
        if reference is None:  # costs were known without a run
            model, folder = store_all(prepared).model(), prepared.folder
            reference = named_outputs(model, prepared.feeds, folder, prepared.tuned)
        same = compare(run.tuned.outputs, reference)
        own = Repeats("", 0.0) if same.bit_equal else _own_repeats(prepared)
        text = f"output '{same.output}' differs by {same.worst:.2g} from the same graph without "
        text += "recomputation"
        ok = same.bit_equal or same.ok or own.allows(same)
        changing = ""
        if not own.same:
            changing = f"'{own.output}' by up to {own.spread:.1e}: {why(prepared.graph)}"
        made = self._checked(run, same, Check(Kind.OUTPUTS, "same outputs", ok, text))
        return replace(made, changing=changing)

    def _checked(self, run: SessionRun, same: Difference, outputs: Check) -> Verified:
        """Outputs that were compared, and the order that was planned."""
        order = order_of("executed order", run.tuned)
        order = replace(order, ok=run.in_order)
        return Verified(same, (outputs, order, *sizes_of(run.tuned), *order_check(self.graph)))

    def contenders(self, prepared: Prepared) -> list[Contender]:
        base = store_all(prepared).model()
        return [
            InSession("store-all", base, prepared.tuned, prepared.folder),
            InSession("result", self.rewritten.model(), self.options, self.folder),
            InSession("original", prepared.original, prepared.default, prepared.home),
        ]

    def allows(self, difference: Difference) -> bool:
        """Within the tolerance of the output's type."""
        return difference.ok

    def model(self, facts: Mapping[str, Any] | None = None) -> onnx.ModelProto:
        scratch = {op: size for op, size in self.scratch.items() if size}
        options = json.dumps(self.options.to_json() | {"threads": 0})
        about = {"options": options, "facts": json.dumps(dict(facts or {})), "scratch": scratch}
        return self.rewritten.model(about)

    def told(self, **facts: Any) -> Self:
        plan = self.plan.with_provenance(**facts)
        made = replace(self, rewritten=replace(self.rewritten, plan=plan))
        known = {"timeline", "unused"} & vars(self).keys()  # the graph is the same
        vars(made).update({name: vars(self)[name] for name in known})
        return made


@dataclass(frozen=True)
class OneSession:
    """A model to run in one session; see :class:`~onnxremat.pipeline.closed_loop.Target`.

    Attributes:
        sketched: what is built is not written: only its bytes are asked for.
    """

    prepared: Prepared
    limit: Limit
    log: Phases
    sketched: bool = False

    @property
    def limits(self) -> Mapping[str, int]:
        """Bytes of the processor for weights and values."""
        return {CPU: self.limit.planned}

    @property
    def aim(self) -> Aim:
        """The limit."""
        return Aim(self.limits)

    @property
    def beside(self) -> int:
        """Bytes that the process takes beside them, and the budget counts."""
        return self.prepared.beside.total

    def limits_for(self, artifact: InOneSession) -> Mapping[str, int]:
        """See :class:`~onnxremat.pipeline.closed_loop.Target`."""
        return {CPU: self.limit.of(artifact.beside)}

    @property
    def feeds(self) -> Feeds | None:
        """What plans are run on."""
        return self.prepared.feeds

    @property
    def reduced(self) -> Reduced:
        """The planner's numbers."""
        return self.prepared.reduced

    def solve(self, aim: Aim, options: PlanOptions, warm: Sequence[int] | None = None) -> Solution:
        """Plan; see :class:`~onnxremat.pipeline.closed_loop.Target`."""
        options = replace(options, fixed_order=self.prepared.settings.fixed_order)
        problem, limit = self.reduced.problem, int(aim.limits[CPU])
        if aim.order and options.method.ladder:
            found = solve_in_order(problem, limit, options, aim.order, warm)
            if found.schedule is not None:
                return found
        return plan_by(problem, limit, options, warm)

    def start(self, found: Solution) -> Sequence[int] | None:
        """Ops in execution order."""
        return found.sequence

    def build(self, aim: Aim, found: Solution, first: Solution) -> InOneSession:
        """Rewrite the graph as planned."""
        made = self._rewritten(self._plan(found, first))
        limit = self.limit.of(made.beside)
        return made.opened_in(limit).told(budget=limit + made.beside)

    def _rewritten(self, plan: Plan) -> InOneSession:
        """The plan carried out. Onnxruntime is asked how it fuses the model only where that would
        fit; without time it is not asked, and there is one way to rewrite."""
        prepared, log = self.prepared, self.log
        if not self.sketched and no_time(prepared, log):
            return carried(prepared, plan, log)
        made = session_of(prepared, rewrite(prepared.graph, plan))
        if self.sketched or not self._fits(made):
            return made
        made = carried(prepared, plan, log)
        if not self._fits(made):  # by what only default sessions need
            made = carried(prepared, plan, log, foreseen=True)
        return made

    def _fits(self, made: InOneSession) -> bool:
        return not excess(made.predict(), self.limits_for(made))

    def lower(self, aim: Aim, found: Solution, artifact: object, over: Mapping[str, int]) -> Aim:
        """See :class:`~onnxremat.pipeline.closed_loop.Target`. A plan that is repeated keeps its
        order where only of that something is proven."""
        assert found.schedule is not None
        order = () if found.certificate.any_order else found.schedule.first_runs
        return replace(aim.less({CPU: found.peak}, over), order=order)

    def refusal(self, found: Solution) -> InfeasibleError | NoPlanError:
        """What is known without looking for a budget that works."""
        fixed = self.prepared.settings.fixed_order
        return unexplained(self.prepared.name, self.limit.asked(self.beside), found, fixed)

    def _plan(self, found: Solution, first: Solution) -> Plan:
        prepared, reduced = self.prepared, self.reduced
        assert found.sequence is not None
        store_all = seconds(reduced.problem, reduced.problem.store_all())
        trivial = Certificate(store_all, "store-all", any_order=True)
        proof = first.proof_of(found.schedule, trivial)
        bound = max(proof.bound, store_all)
        gap = max(0.0, found.time - bound) / store_all if store_all else 0.0
        provenance = Provenance(
            planner=found.planner,
            status="optimal" if gap <= 1e-5 else "feasible",
            bound=min(bound, found.time),
            bound_kind=proof.kind,
            any_order=proof.any_order,
            staged=proof.staged,
            seconds=found.time,
            store_all_seconds=store_all,
            plan_seconds=first.plan_seconds + (found.plan_seconds if found is not first else 0),
            graph_hash=graph_hash(prepared.graph),
            cost_source=prepared.costs.source,
            notes=(*prepared.notes, *said_of_inputs(prepared.graph), *found.notes),
            settings=prepared.settings.to_json(),
        )
        names = reduced.lift(found.sequence)
        names = settled(prepared.graph, updates_last(prepared.graph, names, prepared.in_place))
        return Plan.of(prepared.graph, names, provenance)


def carried(prepared: Prepared, plan: Plan, log: Phases, *, foreseen: bool = False) -> InOneSession:
    """A plan rewritten, its pins suited to what onnxruntime fuses, as far as there is time.

    Args:
        foreseen: see :func:`~onnxremat.rewrite.emit.rewrite`.

    Raises:
        UsageError: the plan does not fit the graph.
    """
    asked = Asked(prepared, log)
    made = session_of(prepared, rewrite(prepared.graph, plan, asked, foreseen=foreseen))
    if asked.last is None or asked.last[0] is not made.graph or prepared.feeds is None:
        return made
    return replace(made, ran=(prepared.feeds, prepared.default, asked.last[1]))


def session_of(prepared: Prepared, rewritten: Rewritten) -> InOneSession:
    """A rewritten graph with what is known of its ops."""
    costs = prepared.costs
    added = sum(
        tensor.bytes for name, tensor in rewritten.graph.tensors.items()
        if tensor.role is Role.WEIGHT and name.startswith(SHOWN)
    )  # fmt: skip
    return InOneSession(
        rewritten,
        prepared.tuned,
        prepared.folder,
        costs.scratch,
        costs.seconds,
        prepared.weights + added,
        beside=prepared.beside_in(rewritten.graph).total,
    )


def store_all(prepared: Prepared) -> Rewritten:
    """The graph with nothing recomputed."""
    base = Plan.of(prepared.graph, [op.name for op in prepared.graph.ops])
    return rewrite(prepared.graph, base)


def store_all_timeline(prepared: Prepared) -> Timeline:
    """What the prepared graph needs without recomputation."""
    return simulate(
        prepared.graph, scratch=prepared.costs.scratch, seconds=prepared.costs.seconds,
        weight_bytes=prepared.weights,
    )  # fmt: skip


def _refuse_overwritten(prepared: Prepared) -> None:
    """Raises:
    UnsupportedError: each run of the model as it came writes over weights, and so gives another
        result: there is none that a plan could keep to.
    """
    own = _own_repeats(prepared) if writing_over(prepared.graph) else None
    if own is not None and not own.same:
        raise UnsupportedError(
            "onnxruntime gives another result in every run of the model as it came",
            why=f"output '{own.output}' changes: {why(prepared.graph)}",
        )


def _own_repeats(prepared: Prepared) -> Repeats:
    """The graph with nothing recomputed, run again and again."""
    assert prepared.feeds is not None
    model, options = store_all(prepared).model(), session_options(prepared.tuned)
    session, drawn = open_session(model, options, prepared.folder), drawn_outputs(prepared.graph)
    return repeats(session, prepared.feeds, drawn=drawn)
