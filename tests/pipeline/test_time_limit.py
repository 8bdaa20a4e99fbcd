"""Planning in rounds keeps to one time limit, on a clock that planning alone moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.measure import Measuring
from onnxremat.errors import NO_FIT, NoPlanError, OverBudgetError
from onnxremat.fission import pricing
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.pricing import Priced
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.unforeseen import SHOWN
from onnxremat.ort import profile as profile_of
from onnxremat.ort.session import OPENED, Options
from onnxremat.pipeline import (
    closed_loop,
    in_session,
    kept_plans,
    priced,
    session_run,
    time_left,
    ways,
    within_budget,
)
from onnxremat.pipeline.artifact import CPU, Check, Kind
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.in_parts import fission_ways  # fmt: skip
from onnxremat.pipeline.in_parts.batch_split import plan_best
from onnxremat.pipeline.in_parts.fission_ways import SEARCH, RegionsInParts, choosers_for
from onnxremat.pipeline.limits import Limit
from onnxremat.pipeline.phases import PLAN, READ, Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.time_left import MEASURING, OFF_PLANNING, QUICK, limited
from onnxremat.pipeline.ways import plan_within_budget
from onnxremat.pipeline.within_budget import plan_within
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.emit import set_metadata
from onnxremat.session.process import PARTS
from onnxremat.units import one_budget
from tests.limits import LONG
from tests.pipeline.test_fission import WHOLE, chain
from tests.toolbox import training_chain, wide_chain

LIMIT = 6.0


class Clock:
    """Moved by every planner by all that it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.given = 100.0, []
        self.generous = False  # plans fit, whatever the budget
        monkeypatch.setattr(in_session, "plan_by", self._planned)
        monkeypatch.setattr(within_budget, "smallest_budget", self._smallest)

    def _take(self, seconds: float) -> None:
        self.now += seconds
        self.given.append(seconds)

    def _planned(self, problem: Any, budget: int, options: PlanOptions, warm: Any = None) -> Any:
        self._take(options.time_limit)
        budget = 1 << 60 if self.generous else budget
        # Generous ones are there at once, however slow the machine; others need not be found.
        real = LONG if self.generous else 2.0
        return plan_by(problem, budget, options.lasting(real), warm)

    def _smallest(self, problem: Any, options: PlanOptions) -> Any:
        from onnxremat.planner import smallest_budget

        self._take(options.time_limit)
        return smallest_budget(problem, options.lasting(1.0))

    def options(self) -> PlanOptions:
        return PlanOptions(time_limit=LIMIT, threads=1, now=lambda: self.now)


@pytest.fixture
def prepared(warm: None) -> Prepared:
    return prepare(wide_chain(), Settings(threads=1, measure=False, not_counted=PARTS))


def test_rounds_share_the_time(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that never fits when it is carried out: every round is over by something."""
    clock = Clock(monkeypatch)
    clock.generous = True
    real = closed_loop.carried_out
    monkeypatch.setattr(closed_loop, "carried_out", lambda *a: (real(*a)[0], {CPU: 1}))
    with pytest.raises(OverBudgetError):
        plan_within(prepared, one_budget(prepared.store_all_peak), clock.options(), explain=False)
    assert len(clock.given) == closed_loop.ROUNDS
    assert sum(clock.given[:2]) <= LIMIT + 1e-6
    assert sum(clock.given) <= 1.5 * LIMIT


def test_explaining_takes_little_more(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(Exception, match="no plan"):
        plan_within(prepared, one_budget(prepared.store_all_peak // 3), clock.options())
    assert sum(clock.given) <= 1.5 * LIMIT


@pytest.mark.parametrize("budget", ["0.3x", "0.01x", "min"])
def test_whole_and_parts_share_the_time(budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = prepare(wide_chain(), Settings(threads=1))
    clock = Clock(monkeypatch)
    try:
        plan_best(measured, one_budget(budget), clock.options())
    except Exception as error:
        assert "no plan" in str(error)  # noqa: PT017
    assert clock.given
    assert sum(clock.given) <= 2 * LIMIT


def test_parts_that_would_take_too_long_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the whole's memory is in reach of a batch in parts only: with a plan where there is time
    for these, and else none that is called impossible."""
    clock = Clock(monkeypatch)
    asked = one_budget("0.4x")
    slow = replace(prepare(wide_chain(), Settings(threads=1, fission=())), optimising=LIMIT)
    assert plan_within_budget(replace(slow, optimising=0.1), asked, clock.options())
    with pytest.raises(NoPlanError, match="a longer --time-limit does"):
        plan_within_budget(slow, asked, clock.options())
    untimed = replace(clock.options(), work=100)
    assert plan_within_budget(slow, asked, untimed)


def test_regions_that_there_was_no_time_for_are_not_called_impossible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading the search is no planning, however long it takes."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(ways, "load_search", lambda *_: clock._take(10 * LIMIT))
    image = prepare(chain(), Settings(threads=1, not_counted=PARTS))
    asked = one_budget(WHOLE // 2)
    assert plan_within_budget(image, asked, clock.options())
    with pytest.raises(NoPlanError, match="a longer --time-limit goes on"):
        plan_within_budget(image, asked, replace(clock.options(), time_limit=0.0))


def test_a_new_limit_for_every_call(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep plans many budgets with the same options."""
    clock = Clock(monkeypatch)
    options = clock.options()
    for _ in range(2):
        plan_within(prepared, one_budget(prepared.store_all_peak), options)
    assert clock.given[0] == pytest.approx(clock.given[1])
    assert replace(options).until == options.until


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, warm: None) -> Any:
    """Optimises in a command whose time is over when it begins, or in one with much of it."""

    def optimized(model: onnx.ModelProto, budget: str, over: bool = True) -> tuple[Any, int]:
        end = -1e4 if over else LONG
        said: list[str] = []
        log, before = Phases(said.append), OPENED.sessions
        monkeypatch.setattr(log, "end_within", lambda _: setattr(log, "due", log._now() + end))
        result = api.optimize(
            model, budget=budget, settings=Settings(threads=1, fresh=True), say=log,
            options=PlanOptions(time_limit=8.0, threads=1), bench_seconds=0,
        )  # fmt: skip
        assert any("more than --time-limit" in text for text in said) == over
        return result, OPENED.sessions - before

    return optimized


def test_what_a_late_result_is_not_checked_for_is_said(
    late: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = to_model(training_chain(4, 16, 64))
    (soon, more), (result, fewer) = late(model, "0.9x", over=False), late(model, "0.9x")
    assert fewer < more
    assert soon.facts()["order_kept_default_options"]
    facts = result.facts()
    assert facts["recomputed_ops"] > 0
    assert facts["peak_measured_bytes"] <= facts["limit_bytes"]
    assert facts["order_kept"]
    assert facts["peak_default_options_bytes"] is facts["order_kept_default_options"] is None
    (note,) = (note for note in facts["notes"] if "not run under default options" in note)
    read = {name for node in result.model.graph.node for name in node.input}
    assert ("may take more than planned" in note) == (SHOWN not in read)
    assert all(check.ok for check in result.checks)
    # `verify` asks for no more than was promised.
    other = Check(Kind.ORDER, session_run.DEFAULT_ORDER, ok=False, text="differs")
    monkeypatch.setattr(session_run.SessionRun, "_default_order", lambda _: other)
    for made, kept, promised in ((soon, True, True), (soon, False, False), (result, None, False)):
        written = made.model
        set_metadata(written, {"facts": {**made.facts(), "order_kept_default_options": kept}})
        onnx.save(written, tmp_path / "out.onnx")
        found = api.verify(model, tmp_path / "out.onnx", settings=Settings(threads=1))
        wrong = [check.name for check in found.checks if not check.ok]
        assert wrong == ([session_run.DEFAULT_ORDER] if promised else [])


def test_the_budget_of_a_late_refusal_works(
    late: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is predicted, not tried; kept when there is time, and when there is none again."""
    monkeypatch.setenv("ONNXREMAT_CACHE", str(tmp_path))
    monkeypatch.setattr(kept_plans, "MODELS", 1)
    model = to_model(training_chain(4, 16, 4096))
    with pytest.raises(NO_FIT, match="there was no time to run it") as caught:
        late(model, "0.1x")
    for over in (False, True):
        assert late(model, str(caught.value.smallest), over)[0].facts()["order_kept"]


@pytest.mark.parametrize("seconds", [0.0, 5.0, 11.0])
def test_what_takes_the_square_of_the_ops_has_a_limit(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes that a session finds as it runs, where one with default options opens the file in no
    time; where that takes some seconds they are waited for once."""
    opened, real = list[bool](), profile_of.session_options

    def opening(graph: Graph) -> float:
        return seconds if SHOWN in graph.tensors else 0.0

    def options(made: Options) -> Any:
        opened.append(made.fuses and made.reuse)
        return real(made)

    monkeypatch.setattr("onnxremat.pipeline.asked.opening", opening)
    monkeypatch.setattr(profile_of, "session_options", options)
    model = to_model(training_chain(4, 16, 64))
    made = api.optimize(
        model, budget="0.9x", settings=Settings(threads=1, costs=analytic_costs),
        options=PlanOptions(work=200, threads=1), bench_seconds=0,
    )  # fmt: skip
    read = {name for node in made.model.graph.node for name in node.input}
    assert (SHOWN in read) == (seconds < 10)
    if seconds == 5:
        assert sum(opened) == 2  # the original and the result
    assert all(check.ok for check in made.checks)


def test_a_choice_of_regions_ends_by_the_processor_or_when_it_is_late(
    warm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a busy machine takes for it; not by either where work is counted."""
    worked, now = [0.0], [0.0]
    monkeypatch.setattr(fission_ways.time, "thread_time", lambda: worked[0])
    options, log = (
        PlanOptions(time_limit=LIMIT, now=lambda: 0.0),
        Phases(now=lambda: now[0], worked=lambda: 0),
    )
    log.end_within(2 * LIMIT)
    image = prepare(chain(), Settings(threads=1, costs=analytic_costs))

    def ended(
        processor: float, clock: float, asked: PlanOptions = options, needed: bool = False
    ) -> bool:
        worked[0] = now[0] = 0.0
        choosers = choosers_for(image, asked, log, needed)
        worked[0], now[0] = processor, clock
        return choosers.ended

    assert not ended(0.99 * SEARCH * LIMIT, 1.99 * LIMIT)
    assert ended(1.01 * SEARCH * LIMIT, 0.0)
    assert ended(0.0, 2.01 * LIMIT)
    assert not ended(2 * LIMIT, 0.0, replace(options, work=100))
    # Where there is nothing else it may have of the time that running plans of a whole would take.
    assert not ended(1.99 * SEARCH * LIMIT, 0.0, needed=True)
    assert ended(2.01 * SEARCH * LIMIT, 0.0, needed=True)
    assert not ended(1.99 * SEARCH * LIMIT, 9 * LIMIT, needed=True)  # a busy machine finds no less


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch, warm: None) -> Any:
    """Plans regions with a clock of the command that stands still until they are chosen, and shows
    then that the time is over, or not."""
    image = prepare(chain(), Settings(threads=1, not_counted=PARTS, costs=analytic_costs))
    real, now = Choosers.within, [0.0]

    def planned(
        budget: int,
        late: bool,
        whole: bool = False,
        passing: float = 0.0,
        begun: float = 0.0,
        least: bool = False,
    ) -> tuple[Candidate | None, str]:
        def within(self: Choosers, limit: int) -> Priced:
            found = real(self, limit)
            now[0] += late * 2 * LIMIT
            return found

        monkeypatch.setattr(Choosers, "within", within)
        limit = 2.0 if least else LONG  # the smallest is looked for until then
        log, options = Phases(now=lambda: now[0]), PlanOptions(time_limit=limit, threads=1).begun()
        log.end_within(LIMIT)
        now[0] += begun
        known = replace(image, passing=passing)
        parts = RegionsInParts(known, one_budget(budget), options, log)
        if whole:
            parts.whole = plan_within(image, one_budget(2 * image.store_all_peak), options)
        if least:
            return parts.surely_leanest(1.0), parts.late
        return parts.within(Limit(budget), "the whole needs more"), parts.late

    return planned


def test_regions_that_alone_keep_a_budget_are_carried_out_however_late(over: Any) -> None:
    """The same plan, whether the time was over when they were chosen, or before, or not."""
    (soon, _), (late, why) = (over(WHOLE * 5 // 8, when) for when in (False, True))
    before, _ = over(WHOLE * 5 // 8, False, begun=2 * LIMIT)
    assert before.plan.sequence == soon.plan.sequence
    assert soon.prepared.settings.fission
    assert late.prepared.settings.fission == soon.prepared.settings.fission
    assert late.plan.sequence == soon.plan.sequence
    assert late.measured.peaks[CPU] <= WHOLE * 5 // 8
    assert not why


def test_regions_that_surely_take_least_are_carried_out_however_late(over: Any) -> None:
    """The smallest budget is not more than one that is kept in the same time."""
    kept, _ = over(WHOLE * 5 // 8, True)
    for found, _ in (over(1, True, least=True), over(1, False, begun=2 * LIMIT, least=True)):
        assert found.measured.peaks[CPU] <= kept.measured.peaks[CPU]


@pytest.mark.parametrize("whole", [False, True])
def test_other_regions_are_not_begun_late(over: Any, whole: bool) -> None:
    """Those that need more than the budget, and those beside a plan of the whole."""
    budget = WHOLE * 5 // 8 if whole else 30_000
    found, why = over(budget, True, whole)
    assert found is None
    assert "the time was over" in why
    found, why = over(budget, False, whole)
    assert (found is not None) == whole
    assert not why


def test_regions_are_not_made_in_less_time_than_a_run_takes(over: Any) -> None:
    """But for those that alone keep the budget: what they take is taken."""
    found, why = over(30_000, False, passing=2 * LIMIT)
    assert found is None
    assert "the time was over" in why
    found, why = over(WHOLE * 5 // 8, False, whole=True, passing=2 * LIMIT)
    assert found is None
    assert "the time was over" in why
    found, why = over(WHOLE * 5 // 8, False, passing=2 * LIMIT)
    assert found is not None
    assert not why


@pytest.mark.slow
def test_the_same_regions_are_made_ready_once(over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their constants alone miss the budget (they are not priced here), and nothing smaller
    is found."""
    monkeypatch.setattr(pricing, "INTEGER", 0)
    made: list[Any] = []
    real = fission_ways.prepare_fission

    def counted(prepared: Prepared, regions: Any, *others: Any) -> Prepared:
        made.append(frozenset(region.key for region in regions))
        return real(prepared, regions, *others)

    monkeypatch.setattr(fission_ways, "prepare_fission", counted)
    chosen: list[Priced] = []
    within = RegionsInParts._chosen
    monkeypatch.setattr(
        RegionsInParts, "_chosen", lambda *given: chosen.append(within(*given)) or chosen[-1]
    )
    over(30_000, False)
    least = chosen[-1].peak
    image = prepare(chain(), Settings(threads=1, not_counted=PARTS, costs=analytic_costs))
    made.clear()
    chosen.clear()
    over(image.weights + least, False)
    assert len(chosen) > 1
    assert len(made) == len(set(made))


def test_costs_of_what_only_parts_can_fit_take_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a whole would do without goes to finding its parts and trying them."""
    given: list[float] = []
    real = priced.measure_costs

    def measured(graph: Graph, feeds: Any, how: Measuring, **others: Any) -> Any:
        given.append(how.within)
        return real(graph, feeds, how, **others)

    monkeypatch.setattr(priced, "measure_costs", measured)
    limit = 20.0
    asked = PlanOptions(time_limit=limit)
    cases = ((WHOLE // 2, None), ("min", None), (2 * WHOLE, None), (WHOLE // 2, ()), ("min", ()))
    for budget, fission in cases:
        settings = Settings(threads=1, not_counted=PARTS, fission=fission)
        prepare(chain(), settings.asked(asked, one_budget(budget)))
    few, least, *more = given
    assert few == least == pytest.approx(MEASURING * limit + QUICK)
    assert len(more) == 3
    assert more == [pytest.approx((MEASURING + OFF_PLANNING) * limit + QUICK)] * 3


def test_a_plan_is_rewritten_once_where_there_is_no_time_to_ask_onnxruntime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = to_model(training_chain(4, 16, 64))
    prepared = prepare(model, Settings(threads=1, not_counted=PARTS, costs=analytic_costs))
    made: list[Any] = []
    real = in_session.rewrite
    monkeypatch.setattr(
        in_session, "rewrite", lambda *given, **more: made.append(given) or real(*given, **more)
    )
    sequences = []
    for left, often in ((LONG, 2), (-1.0, 1)):
        made.clear()
        log = Phases()
        log.end_within(left)
        options = PlanOptions(work=200, threads=1)
        found = plan_within(prepared, one_budget("0.9x"), options, log=log)
        assert len(made) == often * (1 + found.rounds)
        sequences.append(found.plan.sequence)
    assert sequences[0] == sequences[1]


@pytest.mark.parametrize("busy", [True, False])
def test_what_a_late_command_says_of_planning(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine planning goes on beyond the limit, which the model is no reason for."""
    monkeypatch.setattr(time_left, "BESIDE", 4.0)
    clock, said = [0.0], list[str]()
    worked = (lambda: clock[0] / 4) if busy else (lambda: clock[0])
    log = Phases(said.append, lambda: clock[0], worked=worked)
    with limited(PlanOptions(time_limit=10), log), log.phase(PLAN if busy else READ):
        clock[0] += 40
    assert "more than --time-limit 10" in said[0]
    assert ("busy" in said[0]) == busy


@pytest.mark.parametrize("budget", [0.1, 2.0])
def test_a_stopped_refusal_runs_nothing_more(
    budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the smallest budget is looked for; a plan that keeps the budget after all is run
    and kept."""
    asked, runs, real = list[bool](), list[bool](), within_budget.smallest_budget

    def searched(*given: Any) -> Any:
        asked.append(True)
        return real(*given)

    monkeypatch.setattr(within_budget, "smallest_budget", searched)
    unfit = closed_loop.attempt
    prepared = prepare(to_model(training_chain(4, 16, 4096)), Settings(threads=1))
    limit = Limit(round(budget * prepared.baseline_peak))
    monkeypatch.setattr(
        within_budget,
        "attempt",
        lambda target, *more: unfit(replace(target, limit=Limit(1)), *more),
    )
    measured = in_session.InOneSession.measure
    monkeypatch.setattr(
        in_session.InOneSession, "measure",
        lambda *given: (runs.append(True), measured(*given))[1],
    )  # fmt: skip
    options = PlanOptions(time_limit=LONG, threads=1, stop=lambda: bool(asked))
    if budget < 0.5:
        with pytest.raises(NO_FIT, match="there was no time to run it"):
            plan_within(prepared, limit, options)
        assert not runs
    else:
        assert plan_within(prepared, limit, options).held <= limit.planned
        assert runs
