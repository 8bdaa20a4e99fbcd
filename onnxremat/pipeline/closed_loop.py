"""Plan, build, look; and again for less while a device takes more than its budget.

What is planned for is a :class:`Target`: one session on the processor, or several devices. The
loop is the same for both, and so is what it gives back: a :class:`Candidate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from onnxremat.errors import InfeasibleError, NoPlanError, OverBudgetError
from onnxremat.ort.profile import Feeds
from onnxremat.pipeline.artifact import CPU, Artifact, Measured, excess
from onnxremat.pipeline.kept_plans import Known
from onnxremat.pipeline.phases import BUILD, LOAD, MEASURE, PLAN, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.time_left import no_time
from onnxremat.planner.options import ROOM, PlanOptions
from onnxremat.planner.solution import Status
from onnxremat.schedule.plan import Plan
from onnxremat.units import format_bytes

ROUNDS = 8
REPAIR_GAP = 0.02  # gap of a round after planning has ended
NEAR = 0.01  # of a limit, that what a plan adds when it is carried out takes at most
MOST_ROOM = 5.0  # seconds of the time that the first round leaves, at most
FOUND = (Status.OPTIMAL, Status.FEASIBLE)
PINS = 256  # bytes of gates and pins that a round leaves room for, more in each


def load_search(devices: int, log: Phases) -> None:
    """Load the compiled search for so many devices, before a time limit begins to count."""
    from onnxremat.planner import search  # Numba: loaded when it is needed

    with log.phase(LOAD):
        if not search.is_compiled():
            log("compiling the search, once per installation")
        search.warm_up(devices)


class Answer(Protocol):
    """What a planner answers."""

    @property
    def status(self) -> Status:
        """Whether there is a plan."""

    @property
    def plan_seconds(self) -> float:
        """Wall time spent."""


S = TypeVar("S", bound=Answer)


@dataclass(frozen=True)
class Aim:
    """What a round plans for.

    Attributes:
        limits: bytes per device; less than the budgets once carrying a plan out took more.
        price: seconds per partition, likewise, on devices whose partitions hold their buffers.
        per_byte: bytes that these keep for each that an op writes there, once that was seen.
        order: of first runs, of which alone something is proven: () where that is any.
    """

    limits: Mapping[str, float]
    price: Mapping[str, float] = field(default_factory=dict)
    per_byte: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0
    order: tuple[int, ...] = ()

    def less(self, planned: Mapping[str, float], over: Mapping[str, int]) -> Aim:
        """The aim of the next round: less by what was too much, in each further round by twice as
        often that, since where a plan takes most it may have been within the last aim.

        Args:
            planned: bytes per device of the plan that took too much.
            over: bytes by which it was over the budget.
        """
        rounds = self.rounds + 1
        lower = {
            name: min(self.limits.get(name, planned[name]), planned[name])
            - more * 2 ** (rounds - 1)
            - PINS * rounds
            for name, more in over.items()
        }
        return replace(self, limits={**self.limits, **lower}, rounds=rounds)


class Target(Protocol[S]):
    """A model, and what it is to run on."""

    @property
    def prepared(self) -> Prepared:
        """The model."""

    @property
    def limits(self) -> Mapping[str, int]:
        """Bytes per device that has a limit, to plan for."""

    @property
    def aim(self) -> Aim:
        """What the first round plans for."""

    @property
    def beside(self) -> int:
        """Bytes that budgets count, and limits do not."""

    def limits_for(self, artifact: Any) -> Mapping[str, int]:
        """Bytes per device that has a limit, for what a plan became."""

    @property
    def feeds(self) -> Feeds | None:
        """What plans are run on; None where nothing can be run."""

    @property
    def log(self) -> Phases:
        """Told what goes on."""

    def solve(self, aim: Aim, options: PlanOptions, warm: Any) -> S:
        """Plan.

        Args:
            warm: where to start from, as :meth:`start` gives it.
        """

    def start(self, found: S) -> Any:
        """A plan as the start of the next one."""

    def build(self, aim: Aim, found: S, first: S) -> Artifact:
        """The plan made ready to run, with what ``first`` proved of the whole budgets.

        Args:
            aim: what it was planned for.
        """

    def lower(self, aim: Aim, found: S, artifact: Artifact, over: Mapping[str, int]) -> Aim:
        """What to plan for next; see :meth:`Aim.less`."""

    def refusal(self, found: S) -> InfeasibleError | NoPlanError:
        """Why there is no plan."""


@dataclass(frozen=True)
class Candidate:
    """A plan that keeps its budgets, carried out.

    Attributes:
        prepared: the model as it was planned, its batch in parts or whole.
        limits: bytes for weights and values per device that has a limit.
        measured: the run under the meter, None where nothing was run.
        rounds: how often planning was repeated because a budget was missed.
        aim: what it was planned for in the last of them.
        lower, why: no budget below ``lower`` bytes can work, where the smallest was asked for.
    """

    prepared: Prepared
    artifact: Artifact
    limits: Mapping[str, int]
    measured: Measured | None
    rounds: int = 0
    aim: Aim | None = None
    lower: int = 0
    why: str = ""

    @property
    def plan(self) -> Plan:
        """What is carried out."""
        return self.artifact.plan

    @property
    def limit(self) -> int:
        """Bytes for the weights and values of one session."""
        return self.limits[CPU]

    @property
    def budget(self) -> int:
        """Bytes for the process of one session."""
        return self.limit + self.artifact.beside

    @property
    def peak(self) -> int:
        """Predicted bytes of one session."""
        return self.artifact.predict()[CPU]

    @property
    def held(self) -> int:
        """Bytes of weights and values in one session, predicted and, where it was run, measured."""
        return max(self.peak, self.measured.peaks[CPU] if self.measured else 0)

    @property
    def process(self) -> int:
        """All bytes of one session that a budget counts."""
        return self.held + self.artifact.beside

    @property
    def in_order(self) -> bool:
        """Where it was run, ops ran as planned. Those that onnxruntime adds at load, casts
        of half precision, come last in its lists, and what reads them is late: parts of a graph,
        which do not depend on each other, change places then."""
        return self.measured is None or self.measured.in_order

    @property
    def kept(self) -> Known:
        """What it takes to carry its plan out again in as many bytes."""
        return Known(self.prepared, self.held, self.artifact.beside, self.plan.sequence)

    def told(self, **facts: Any) -> Candidate:
        """The same with other facts about its plan, in what will be written too."""
        return replace(self, artifact=self.artifact.told(**facts))

    def noted(self, *notes: str) -> Candidate:
        """The same with more to say about its plan."""
        return self.told(notes=(*self.plan.provenance.notes, *notes))


@dataclass(frozen=True)
class Unfit(Generic[S]):
    """No plan that keeps the budgets was found.

    Attributes:
        found: the planner's answer for the whole budgets.
        over: bytes by which the last plan missed them when carried out; empty where there was none.
    """

    target: Target[S]
    found: S
    over: Mapping[str, int]

    def error(self) -> InfeasibleError | NoPlanError | OverBudgetError:
        """What is known without looking for budgets that work."""
        if not self.over:
            return self.target.refusal(self.found)
        limits = self.target.limits
        worst = max(self.over, key=self.over.__getitem__)
        limit = limits[worst] + self.target.beside
        needs = limit + self.over[worst]
        device = f" device '{worst}'" if len(limits) > 1 else ""
        return OverBudgetError(
            f"no plan keeps{device} within {format_bytes(limit)} when carried out",
            why=f"the last one needs {format_bytes(needs)}, {self.over[worst]} bytes more",
            hint=f"--budget {f'{worst}=' if device else ''}{needs}",
            excess=self.over[worst],
        )


def attempt(
    target: Target[S], options: PlanOptions, warm: Any = None, *, rounds: int = ROUNDS
) -> Candidate | Unfit[S]:
    """Plan and carry out until the budgets are kept.

    Args:
        warm: where to start from, as :meth:`Target.start` gives it.

    Raises:
        NoPlanError: stopped before planning began.
    """
    if options.stopped:
        raise NoPlanError("stopped before planning began")
    options = options.begun()
    aim, late = target.aim, 0
    over: dict[str, int] = {}
    first: S | None = None
    for round_ in range(rounds):
        if round_ and no_time(target.prepared, target.log) and not _near(over, target.limits):
            break
        late += round_ > 0 and (options.stopped or options.left <= 0)
        with target.log.phase(PLAN):
            found = target.solve(aim, _of_round(options, late, first), warm)
        first = first or found  # its bound is the one for the whole budgets
        if found.status not in FOUND:
            break
        candidate, over = carried_out(target, aim, found, first)
        if not over:
            return replace(candidate, rounds=round_, aim=aim)
        aim = target.lower(aim, found, candidate.artifact, over)
        warm = target.start(found)
    assert first is not None
    return Unfit(target, first, over)


def _near(over: Mapping[str, int], limits: Mapping[str, int]) -> bool:
    """Whether a plan misses its limits by so little that it only has to be made to fit, which is
    done however late it is: gates and pins took more room than was left for them."""
    return all(more <= NEAR * limits[name] for name, more in over.items())


def _of_round(options: PlanOptions, late: int, first: Answer | None) -> PlanOptions:
    """The options of a round: the first leaves time for those that make its plan fit, and once
    planning has ended the plan at hand only has to be made to fit."""
    if late:
        seconds = options.least * 0.5 ** (late - 1)
        gap = max(options.gap, REPAIR_GAP)
        return replace(options.lasting(seconds), gap=gap, stop=None)
    if first is None:
        seconds = options.left - min(MOST_ROOM, ROOM * options.left)
    else:
        seconds = min(options.left, max(MOST_ROOM, first.plan_seconds / 8))
    return options.lasting(max(options.least, seconds))


def carried_out(
    target: Target[S], aim: Aim, found: S, first: S
) -> tuple[Candidate, dict[str, int]]:
    """A plan made ready and run, and the bytes by which it misses budgets. What is predicted comes
    first: a plan that misses by that is not run."""
    with target.log.phase(BUILD):
        artifact = target.build(aim, found, first)
        limits = target.limits_for(artifact)
        over = excess(artifact.predict(), limits)
    measured = None
    if not over and target.feeds is not None:
        with target.log.phase(MEASURE, "measuring the plan"):
            measured = artifact.measure(target.feeds)
            over = excess(measured.peaks, limits)
    return Candidate(target.prepared, artifact, limits, measured), over


def as_given(target: Target[S], found: S) -> Candidate:
    """One given answer of a planner carried out as it is.

    Raises:
        OverBudgetError: carried out it takes more than a budget.
    """
    candidate, over = carried_out(target, Aim(target.limits), found, found)
    if over:
        worst = max(over, key=over.__getitem__)
        limit, more = target.limits[worst] + target.beside, over[worst]
        raise OverBudgetError(
            f"the plan takes {format_bytes(limit + more)} when carried out",
            where=f"device '{worst}'" if len(target.limits) > 1 else "",
            why=f"that is {more} bytes over the budget of {limit} B",
            hint=f"solve for {limit - more} bytes, or allow {limit + more}",
            excess=more,
        )
    return candidate
