"""A plan in one session for a budget, for the smallest budget there is one for, or why none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxremat.errors import NoPlanError, UsageError
from onnxremat.pipeline.artifact import CPU
from onnxremat.pipeline.closed_loop import Aim, Candidate, Unfit, attempt, carried_out
from onnxremat.pipeline.floor import beside_too
from onnxremat.pipeline.in_session import InOneSession, OneSession, carried
from onnxremat.pipeline.kept_plans import Known, keep
from onnxremat.pipeline.limits import Limit, limit_of
from onnxremat.pipeline.phases import BUILD, MEASURE, PLAN, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Least, given_up, refusal
from onnxremat.pipeline.time_left import no_time
from onnxremat.planner import smallest_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.reasons import named
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import seconds
from onnxremat.planner.solution import Certificate, Solution, Status
from onnxremat.schedule.plan import Compute, Plan, Transfer
from onnxremat.session.process import UPDATES
from onnxremat.units import Budget, format_bytes

HALF = 0.5  # of the time, for the smallest budget
BUILT = 2  # times as long as a session of the model a plan of it takes to be built and run
PREDICTED = "by prediction: there was no time to run it"
# Of the least bytes that more is taken where that saves much time: of what the plan takes more than
# the original, from so much on, this share at least.
SLIGHT, DEAR, SAVED = 0.005, 0.05, 0.5
TURNS, NEARLY = 4, 1.02  # of bisection below what was found; times the least, where it ends


def plan_within(
    prepared: Prepared,
    budget: Budget | Limit,
    options: PlanOptions,
    warm: Sequence[int] | None = None,
    *,
    explain: bool = True,
    log: Phases | None = None,
) -> Candidate:
    """A plan whose measured (or, without measuring, predicted) bytes are within the budget.

    Args:
        warm: ops of the reduced problem in execution order, to start from.
        explain: look for the smallest budget that works before an error is raised.

    Raises:
        InfeasibleError: proven that no plan fits; carries the smallest budget that does.
        NoPlanError: none found in time, or stopped before planning began.
        OverBudgetError: measured peaks stay over the budget.
    """
    options, log = options.begun(), log or Phases()
    limit = limit_of(prepared, budget) if isinstance(budget, Budget) else budget
    if limit is None:
        return at_minimum(prepared, smallest(prepared, options.within(HALF), log), options, log)
    made = attempt(OneSession(prepared, limit, log), options, warm)
    if isinstance(made, Candidate):
        return made
    chosen = not options.method.ladder
    if not explain or (chosen and made.over):
        raise made.error()
    if chosen and made.found.status is not Status.INFEASIBLE:
        shown = limit.asked(prepared.beside.total)
        raise given_up(options.method.name, prepared.name, shown, made.found)
    least = smallest(prepared, options.within(HALF), log, limit)
    if not chosen and least.keeps(limit):
        return least.as_answer(limit, made)
    all_ways = made.found.certificate.any_order or prepared.settings.fixed_order
    keep(prepared, least.known, limit.total is None)
    works = Least(least.known.works, least.lower, least.why, least.how, least.known.fits)
    shown = limit.asked(prepared.beside.total)
    raise refusal(prepared.name, shown, made.found, works, all_ways=all_ways, notes=prepared.notes)


@dataclass(frozen=True)
class Smallest:
    """The smallest plan found, carried out; and why a budget of less than ``lower`` bytes cannot
    work.

    Attributes:
        how: its bytes are known, where it was not run.
    """

    candidate: Candidate
    sequence: list[int]
    lower: int
    why: str
    how: str = ""

    @property
    def known(self) -> Known:
        """What it takes to carry it out again."""
        return replace(self.candidate.kept, tried=not self.how)

    def keeps(self, limit: Limit) -> bool:
        """Whether it is within a limit."""
        return self.candidate.held <= limit.of(self.candidate.artifact.beside)

    def as_answer(self, limit: Limit, unfit: Unfit[Solution]) -> Candidate:
        """The plan for a limit for which no other was found in time."""
        proof, plan = unfit.found.certificate, self.candidate.plan
        prepared = self.candidate.prepared
        answer = for_limit(self.candidate, limit.of(self.candidate.artifact.beside))
        # What is proven of one order, or of the batch whole, says nothing of other plans.
        same = prepared.graph is unfit.target.prepared.graph
        if not (same and (proof.any_order or prepared.settings.fixed_order)):
            return answer
        return answer.told(
            bound=min(proof.bound, plan.provenance.seconds),
            bound_kind=proof.kind,
            any_order=proof.any_order,
        )


def smallest(
    prepared: Prepared, options: PlanOptions, log: Phases, refused: Limit | None = None
) -> Smallest:
    """What the smallest plan that is found in time takes when carried out.

    Args:
        refused: a limit that no plan was found for; where the smallest does not keep it either and
            there is no time to run it, its bytes are predicted.

    Raises:
        NoPlanError: stopped before planning began.
    """
    if options.stopped:
        raise NoPlanError("stopped before planning began")
    problem = prepared.reduced.problem
    with log.phase(PLAN):
        found, sequence, lower, why = smallest_budget(
            problem,
            replace(
                options.lasting(max(options.least, options.left)),
                fixed_order=prepared.settings.fixed_order,
            ),
        )
    solution = Solution(
        status=Status.FEASIBLE,
        schedule=Schedule.of(problem, sequence),
        time=seconds(problem, sequence),
        peaks=(found,),
        certificate=Certificate(seconds(problem, problem.store_all()), "store-all", True),
        planner="smallest-budget",
        plan_seconds=0.0,
    )
    free = run = OneSession(prepared, Limit(1 << 62), log)  # gates take bytes more than was found
    how = PREDICTED if refused and (options.stopped or no_time(prepared, log, BUILT)) else ""
    if how:
        free = replace(run, prepared=prepared.unmeasured, sketched=True)
    made, _ = carried_out(free, Aim(free.limits), solution, solution)
    if how and refused and made.held <= refused.of(made.artifact.beside):
        how, free = "", run
        made, _ = carried_out(free, Aim(free.limits), solution, solution)
    assert isinstance(made.artifact, InOneSession)
    if made.artifact.opened_in(made.held) is not made.artifact:
        bound = replace(free, limit=Limit(made.held))
        made, _ = carried_out(bound, Aim(free.limits), solution, solution)
    least = lower + prepared.beside.total
    made = _less_in_all(for_limit(made, made.held), free, least, options)
    reason = beside_too(named(why, prepared.names), prepared.beside)
    return Smallest(made, list(sequence), least, reason, how)


def _less_in_all(made: Candidate, free: OneSession, low: int, options: PlanOptions) -> Candidate:
    """A plan that takes less in all than the one of the smallest weights and values, where that has
    so many more ops that, with what the session keeps of them, storing everything takes less: by
    bisection.

    Args:
        free: the target without a limit.
        low: bytes in all that no plan goes below.
    """
    beside = made.prepared.beside.total
    if made.artifact.beside - beside <= (NEARLY - 1) * made.process:
        return made
    whole = attempt(free, options.lasting(options.least))
    if not isinstance(whole, Candidate) or whole.process >= made.process:
        return made
    made = for_limit(whole, whole.held)
    for turn in range(0 if free.sketched else TURNS):
        if options.stopped or made.process <= NEARLY * low:
            break
        between = (low + made.process) // 2
        target = replace(free, limit=Limit(max(1, between - beside), between))
        found = attempt(target, options.within(1 / (TURNS - turn)))
        if isinstance(found, Candidate):
            made = for_limit(found, found.held)
        else:
            low = between
    return made


def at_minimum(prepared: Prepared, least: Smallest, options: PlanOptions, log: Phases) -> Candidate:
    """The smallest budget, at the least time.

    Raises:
        As :func:`plan_within`, where a method was asked for.
    """
    target = OneSession(prepared, Limit(least.candidate.limit), log)
    made: Candidate | Unfit[Solution] = least.candidate
    if not options.stopped:
        made = attempt(target, options, least.sequence, rounds=2)
    if isinstance(made, Unfit):
        if not options.method.ladder:
            raise made.error()
        made = least.candidate  # nothing quicker fits
    made = _much_quicker(made, target, options)
    if UPDATES in prepared.settings.not_counted:
        made = _lower(made, least, options, log)
    return replace(made, lower=least.lower, why=least.why).noted(
        f"{no_less(least.lower)} can work: {least.why}"
    )


def _much_quicker(made: Candidate, target: OneSession, options: PlanOptions) -> Candidate:
    """A plan of next to no more bytes, where it takes far less time."""
    total = target.prepared.costs.total
    extra = made.artifact.seconds - total
    if extra <= DEAR * total or options.stopped or options.left <= 0:
        return made
    more = int(SLIGHT * made.process)
    slight = replace(target, limit=Limit(made.limit + more))
    found = attempt(slight, options, rounds=2)
    if not isinstance(found, Candidate):
        return made
    saved = made.artifact.seconds - found.artifact.seconds
    if saved < SAVED * extra or found.process > made.process + more:
        return made
    shares = (100 * (each.artifact.seconds / total - 1) for each in (made, found))
    least, instead = (f"+{share:.3g} %" for share in shares)
    return for_limit(found, found.held).noted(
        f"a plan of {format_bytes(made.process)} ({made.process} B) takes {least} time; this one "
        f"needs {format_bytes(found.process - made.process)} more and takes {instead} "
        f"(--budget {made.process} asks for the other)"
    )


def no_less(lower: int) -> str:
    """How a note begins that says so."""
    return f"no budget below {format_bytes(lower)} ({lower} B)"


def _lower(made: Candidate, least: Smallest, options: PlanOptions, log: Phases) -> Candidate:
    """A smaller plan of a step that writes new values over old ones, by bisection.

    The planner does not know that an update waits for recomputations that read the old value, its
    gradient in memory: carried out, the smallest plan that it knows may be far from the smallest.
    """
    prepared = made.prepared
    low = max(0, least.lower - prepared.beside.total)
    for turn in range(TURNS):
        if options.stopped or made.held <= NEARLY * low:
            break
        between = (low + made.held) // 2
        share = options.within(1 / (TURNS - turn))
        found = attempt(OneSession(prepared, Limit(between), log), share)
        if isinstance(found, Candidate):
            made = for_limit(found, found.held)
        else:
            low = between
    return made


def applied(prepared: Prepared, plan: Plan, log: Phases, *, foreseen: bool = False) -> Candidate:
    """A plan made earlier, carried out whatever it takes.

    Args:
        foreseen: see :func:`~onnxremat.rewrite.emit.rewrite`.

    Raises:
        UsageError: it does not fit the graph, or is one for several devices.
    """
    devices = {step.device for step in plan.steps if isinstance(step, Compute)}
    if devices != {CPU} or any(isinstance(step, Transfer) for step in plan.steps):
        raise UsageError(
            "the plan is one for several devices",
            why="it runs on " + ", ".join(sorted(devices)),
            hint="plan again with: onnxremat optimize IN OUT --devices MACHINE",
        )
    with log.phase(BUILD):
        artifact = carried(prepared, plan, log, foreseen=foreseen)
        if plan.provenance.budget:
            artifact = artifact.opened_in(plan.provenance.budget - artifact.beside)
    measured = None
    if prepared.feeds is not None:
        with log.phase(MEASURE):
            measured = artifact.measure(prepared.feeds)
            assert measured.peaks
    limit = {CPU: plan.provenance.budget - artifact.beside}
    made = Candidate(prepared, artifact, limit, measured)
    return made if plan.provenance.budget else for_limit(made, made.held)  # what it takes


def for_limit(candidate: Candidate, limit: int) -> Candidate:
    """The same plan, for ``limit`` bytes of weights and values."""
    budget = limit + candidate.artifact.beside
    return replace(candidate.told(budget=budget), limits={CPU: limit})
