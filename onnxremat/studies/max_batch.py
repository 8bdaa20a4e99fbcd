"""The largest batch for which a plan within the budget exists.

Batches are doubled until none fits, then bisected: what a batch needs is taken to grow with it.
Each batch is the same model with the dimension bound to another number, planned without running it.
Costs are measured once, at the largest power of two whose unplanned model fits, and scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from math import ceil, inf
from typing import Any

import numpy as np

from onnxremat.cost.scaled import scaled_costs
from onnxremat.device.host import memory_bytes
from onnxremat.errors import (
    InfeasibleError,
    NoPlanError,
    OverBudgetError,
    StoppedError,
    UsageError,
)
from onnxremat.limits import at_least
from onnxremat.pipeline.original.source import Source, read_source
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.refusal import Refusal
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.study_problem import (
    Subject,
    is_graph_file,
    prepared_subject,
    read_subject,
)
from onnxremat.pipeline.within_budget import plan_within
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import Problem
from onnxremat.planner.solution import Solution, Status
from onnxremat.studies.graph_file import plan_problem
from onnxremat.units import Budget, format_bytes

LARGEST = 1 << 16
ROUNDED = 1 + 1e-9


@dataclass(frozen=True)
class Trial:
    """One batch: sizes in bytes, shares of the store-all time, seconds of one run as planned.

    ``verdict`` is ``fits``, ``infeasible`` (proven), ``too slow`` (proven: no plan keeps the limit
    on extra time), or ``not found``. Peaks are of weights and values; the budget counts ``beside``
    bytes more of the plan, and ``store_all_beside`` of what recomputes nothing.
    """

    batch: int
    verdict: str
    store_all_peak: int
    peak: int | None = None
    overhead: float | None = None
    bound: float | None = None
    seconds: float | None = None
    why: str = ""
    beside: int = 0
    store_all_beside: int = 0

    @property
    def process(self) -> int | None:
        """Bytes of the process as planned."""
        return None if self.peak is None else self.peak + self.beside

    @property
    def store_all_process(self) -> int:
        """Bytes of a process that recomputes nothing."""
        return self.store_all_peak + self.store_all_beside

    @property
    def fits(self) -> bool:
        """True when there is a plan."""
        return self.verdict == "fits"

    @property
    def throughput(self) -> float | None:
        """Samples a second, as predicted."""
        return self.batch / self.seconds if self.seconds else None


@dataclass(frozen=True)
class MaxBatch:
    """The answer.

    Attributes:
        dimension: what was grown.
        budget: bytes.
        trials: every batch tried, smallest first.
        proven: one batch more is proven not to fit.
    """

    model: str
    dimension: str
    budget: int
    trials: list[Trial]
    proven: bool

    @property
    def best(self) -> Trial:
        """The largest batch with a plan."""
        return max((trial for trial in self.trials if trial.fits), key=lambda trial: trial.batch)

    def facts(self) -> dict[str, Any]:
        """All figures as plain data."""
        rows = [
            asdict(one) | {"throughput": one.throughput, "process": one.process}
            for one in self.trials
        ]
        best = self.best
        return {
            "model": self.model, "dimension": self.dimension, "budget_bytes": self.budget,
            "batch": best.batch, "proven": self.proven, "overhead_planned": best.overhead,
            "peak_predicted_bytes": best.peak, "process_bytes": best.process, "trials": rows,
        }  # fmt: skip


@dataclass
class Batches:
    """A source at any batch.

    Attributes:
        dimension: symbolic dimension to bind, empty for a graph file.
        file_batch: batch that a graph file's sizes are for; all of them are scaled.
    """

    source: Source
    settings: Settings
    dimension: str
    file_batch: int = 1
    _made: dict[int, Subject] = field(default_factory=dict)
    _measured: Subject | None = None

    @classmethod
    def of(cls, source: Source, settings: Settings, dimension: str, file_batch: int) -> Batches:
        """The same with the only open dimension where none is named.

        Raises:
            UsageError: there is none, or not that one; a batch of a file that is a model.
        """
        if is_graph_file(source):
            if dimension:
                raise UsageError(
                    f"a graph file has no dimension '{dimension}'",
                    hint="leave out --dim: all of its sizes are scaled",
                )
            return cls(source, settings, "", file_batch)
        if file_batch != 1:
            raise UsageError(
                "--file-batch is for graph files, and this is a model",
                hint="leave out --file-batch",
            )
        return cls(source, settings, open_dimension(source, settings, dimension))

    def at(self, batch: int) -> Subject:
        """The subject at a batch, with costs measured at another one where that is done."""
        subject = self._bound(batch)
        if self._measured is None or subject.model is None or self._measured.model is None:
            return subject
        reference, prepared = self._measured.model, subject.model
        costs = scaled_costs(reference.costs, reference.graph, prepared.graph)
        return prepared_subject(replace(prepared, costs=costs, weights=reference.weights))

    def measure(self, limit: int, say: Callable[[str], None]) -> int:
        """Measure costs at the largest power of two whose unplanned model fits; returns it."""
        batch = 1
        while batch < LARGEST:
            subject = self._bound(2 * batch)
            if subject.baseline_peak + subject.beside > limit:
                break
            batch *= 2
        if self.settings.measure and not is_graph_file(self.source):
            say(f"measuring costs at batch {batch}")
            settings = replace(self.settings, dims={**self.settings.dims, self.dimension: batch})
            self._measured = read_subject(self.source, settings)
        return batch

    def _bound(self, batch: int) -> Subject:
        if batch not in self._made:
            self._made[batch] = self._read(batch)
        return self._made[batch]

    def _read(self, batch: int) -> Subject:
        if is_graph_file(self.source):
            subject = read_subject(self.source, self.settings)
            part = batch / self.file_batch
            problem = _scaled(subject.problem, part)
            return replace(
                subject, problem=problem, baseline_peak=ceil(subject.baseline_peak * part)
            )
        dims = {**self.settings.dims, self.dimension: batch}
        settings = replace(self.settings, dims=dims, measure=False, data=None)
        return prepared_subject(prepare(self.source, settings))


def _scaled(problem: Problem, part: float) -> Problem:
    """Every size and cost of a graph file times ``part``, sizes rounded up."""
    return replace(
        problem,
        cost=problem.cost * part,
        work=np.ceil(problem.work * part).astype(np.int64),
        size=np.ceil(problem.size * part).astype(np.int64),
    )


def open_dimension(source: Source, settings: Settings, wanted: str) -> str:
    """The symbolic dimension to grow: the one asked for, or the only one that is open.

    Raises:
        UsageError: there is none, several, or not that one.
    """
    model, _, name = read_source(source)
    constants = {tensor.name for tensor in model.graph.initializer}
    found = [
        dim.dim_param
        for value in model.graph.input
        if value.name not in constants
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    ]
    names = [each for each in dict.fromkeys(found) if each not in settings.dims]
    if wanted and wanted not in names:
        raise UsageError(
            f"{name} has no open dimension '{wanted}'",
            hint="open dimensions are " + (", ".join(names) or "(none)"),
        )
    if not names and found:
        raise UsageError(
            f"{name} has no open dimension to grow",
            why="each has a size by --dim",
            hint=f"give the name of the one to grow alone: --dim {found[0]}",
        )
    if not names:
        raise UsageError(
            f"{name} has no open dimension to grow",
            why="every input has a fixed shape",
            hint="onnxremat set-batch IN OUT 8 writes it for another batch; or export it with a "
            "symbolic batch dimension",
        )
    if not wanted and len(names) > 1:
        raise UsageError(
            f"{name} has several open dimensions: {', '.join(names)}",
            hint=f"--dim {names[0]} grows it; bind the others with --dim {names[1]}=128",
        )
    return wanted or names[0]


def max_batch(
    batches: Batches,
    budget: Budget,
    options: PlanOptions,
    *,
    max_overhead: float = inf,
    most: int = LARGEST,
    say: Callable[[str], None] | None = None,
) -> MaxBatch:
    """Find the largest batch; ``options.time_limit`` holds for each batch tried.

    Args:
        max_overhead: largest extra time, as a share of the store-all time of the same batch.
        most: no larger batch is tried.

    Raises:
        UsageError: the budget is no number of bytes.
        InfeasibleError, NoPlanError: not even batch 1 fits.
        StoppedError: stopped before any batch was found to fit.
    """
    for name, given in (("most", most), ("file_batch", batches.file_batch)):
        at_least(given, 1, name)
    at_least(max_overhead, 0, "max_overhead")
    say = say or (lambda _: None)
    if budget.kind not in ("bytes", "device"):
        raise UsageError(
            f"budget '{budget.text}' depends on the batch", hint="give bytes: --budget 2GiB"
        )
    limit = int(budget.resolve(device_bytes=memory_bytes(), peak_bytes=0) or 0)
    search = _Search(batches, limit, options, max_overhead, say)
    search.run(min(batches.measure(limit, say), most), most)
    return search.answer()


@dataclass
class _Search:
    """Doubling and bisection over batches."""

    batches: Batches
    limit: int
    options: PlanOptions
    max_overhead: float
    say: Callable[[str], None]
    trials: dict[int, Trial] = field(default_factory=dict)
    sequences: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def run(self, start: int, most: int) -> None:
        good, bad, batch = 0, most + 1, start
        while bad - good > 1 and not self._stopped():
            self.say(f"planning batch {batch}")
            self.trials[batch] = self._trial(batch)
            if self.trials[batch].fits:
                good = batch
            else:
                bad = batch
            batch = min(2 * good, most) if bad > most else (good + bad) // 2
        if good and not self._stopped():
            self.say(f"planning batch {good} to the end")
            self.trials[good] = self._polished(self.trials[good])

    def _stopped(self) -> bool:
        return self.options.stopped

    def answer(self) -> MaxBatch:
        trials = [self.trials[batch] for batch in sorted(self.trials)]
        name = self.batches.at(trials[0].batch).name if trials else "the model"
        if not any(trial.fits for trial in trials):
            self._refuse(name, trials)
        best = max(trial.batch for trial in trials if trial.fits)
        above = self.trials.get(best + 1)
        proven = above is not None and above.verdict in ("infeasible", "too slow")
        return MaxBatch(name, self.batches.dimension or "batch", self.limit, trials, proven)

    def _refuse(self, name: str, trials: list[Trial]) -> None:
        smallest = trials[0] if trials else None
        if smallest is None or (self._stopped() and smallest.batch > 1):
            raise StoppedError("interrupted before a batch was found to fit")
        size = format_bytes(self.limit)
        what = f"no plan of the whole of {name} at batch {smallest.batch} within {size}"
        if smallest.verdict == "infeasible":
            why, more = smallest.why, self.batches.at(smallest.batch).beside
            why += f"; {format_bytes(more)} are counted beside weights and values" if more else ""
            raise Refusal(what, why, proven=True, lower=self.limit + 1).error()
        why = smallest.why or smallest.verdict
        raise Refusal(what, why, proven=False, first="a larger --budget").error()

    def _trial(self, batch: int) -> Trial:
        """Plan until a plan is found that keeps the limits, or none is proven to exist."""
        subject = self.batches.at(batch)
        goal = (1 + self.max_overhead) * subject.store_all_seconds
        watch = _Watch(self.options, goal)
        options = replace(self.options, progress=watch.note, stop=watch.stopped)
        below = [known for known in self.sequences if known < batch]
        warm = self.sequences[max(below)] if below else None
        found = plan_problem(subject, self._planned(subject), options, warm)
        proof = found.certificate
        none = Trial(
            batch, "not found", subject.store_all_peak, why=subject.said(found.notes),
            beside=subject.beside, store_all_beside=subject.beside,
        )  # fmt: skip
        proven = proof.any_order or subject.fixed_order
        if found.status is Status.INFEASIBLE and proven:
            return replace(none, verdict="infeasible")
        if found.sequence is None or found.time > goal * ROUNDED:
            if proven and proof.bound > goal * ROUNDED:
                least = proof.bound / subject.store_all_seconds - 1
                return replace(
                    none, verdict="too slow", why=f"no plan takes less than {least:+.1%}"
                )
            return none
        self.sequences[batch] = found.sequence
        return self._carried(subject, batch, found)

    def _planned(self, subject: Subject) -> int:
        """Bytes of the problem within the budget."""
        limit = subject.limit(self._budget)
        return limit.planned if limit else 0

    @property
    def _budget(self) -> Budget:
        return Budget(str(self.limit), "bytes", self.limit)

    def _carried(self, subject: Subject, batch: int, found: Solution) -> Trial:
        """The trial of a plan, which a model also has to keep once it is rewritten."""
        total, peak = subject.store_all_seconds or 1.0, subject.store_all_peak
        if subject.model is None:
            over, bound = found.time / total - 1, max(0.0, found.certificate.bound / total - 1)
            return Trial(batch, "fits", peak, found.peak, over, bound, found.time)
        gap = max(self.options.gap, found.time / total - 1)  # the plan at hand is good enough
        return self._outcome(subject, batch, replace(self.options, gap=gap))

    def _outcome(self, subject: Subject, batch: int, options: PlanOptions) -> Trial:
        assert subject.model is not None
        peak, warm = subject.store_all_peak, self.sequences[batch]
        try:
            made = plan_within(subject.model, self._budget, options, warm, explain=False)
        except (NoPlanError, InfeasibleError, OverBudgetError) as error:
            why = error.why or error.what
            return Trial(
                batch, "not found", peak, why=why, beside=subject.beside,
                store_all_beside=subject.beside,
            )  # fmt: skip
        facts = made.plan.provenance
        over = facts.overhead > self.max_overhead * ROUNDED
        return Trial(
            batch, "not found" if over else "fits", peak, made.peak, facts.overhead,
            facts.bound_overhead, facts.seconds,
            why="rewritten, it takes more than the limit on extra time" if over else "",
            beside=made.artifact.beside, store_all_beside=subject.beside,
        )  # fmt: skip

    def _polished(self, trial: Trial) -> Trial:
        """The best plan for the answer; the trial took the first that fitted."""
        subject = self.batches.at(trial.batch)
        if subject.model is None:
            sequence = self.sequences[trial.batch]
            found = plan_problem(subject, self._planned(subject), self.options, sequence)
            best = self._carried(subject, trial.batch, found)
        else:
            best = self._outcome(subject, trial.batch, self.options)
        better = best.fits and (best.overhead or 0.0) <= (trial.overhead or 0.0)
        return best if better else trial


@dataclass
class _Watch:
    """Ends planning as soon as a plan takes at most ``goal`` seconds, or none can."""

    options: PlanOptions
    goal: float
    decided: bool = False

    def note(self, best: float, bound: float, stage: str) -> None:
        found = best < inf and best <= self.goal
        self.decided = self.decided or found or bound > self.goal * ROUNDED
        if self.options.progress is not None:
            self.options.progress(best, bound, stage)

    def stopped(self) -> bool:
        return self.decided or self.options.stopped
