"""A refusal is called proven where nothing that may be done keeps the budget, and only there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import NO_FIT, InfeasibleError, NoPlanError, OnnxrematError
from onnxremat.fission import choose
from onnxremat.fission.region import Region
from onnxremat.fission.split import split
from onnxremat.pipeline.closed_loop import Aim, Unfit, carried_out
from onnxremat.pipeline.in_parts import batch_split
from onnxremat.pipeline.in_parts.batch_split import plan_best
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.limits import Limit
from onnxremat.pipeline.optimize import Request, optimize
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.ways import plan_within_budget
from onnxremat.pipeline.within_budget import Smallest
from onnxremat.planner.options import Method, PlanOptions
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.solution import Certificate, Solution, Status
from onnxremat.schedule.simulate import simulate
from onnxremat.session.process import PARTS
from onnxremat.units import parse_budget
from tests.limits import LONG
from tests.pipeline.test_fission import WHOLE, chain
from tests.toolbox import parse, wide_chain

ASKED = Settings(
    threads=1, target="portable", costs=analytic_costs, not_counted=PARTS
)  # budgets of weights and values alone
WORK = PlanOptions(work=300, threads=1)
# An op that splits along no axis, between two that do.
SORTED = """g (float[65536] x) => (float[1] y) <int64[1] k = {65536}> {
    a = Sin(x) b, c = TopK(a, k) d = Cos(b) e = Cast<to: int = 1>(c) f = Add(d, e)
    y = ReduceSum(f)
}"""


def _refused(prepared: Prepared, size: int, **options: Any) -> OnnxrematError:
    with pytest.raises(NO_FIT) as refused:
        plan_within_budget(prepared, parse_budget(size), replace(WORK, **options))
    return refused.value


def test_less_than_weights_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few regions were looked at."""
    monkeypatch.setattr(choose, "WORK", 1000)
    for make in (chain, wide_chain):
        prepared = prepare(make(), ASKED)
        floor = prepared.weights + prepared.graph.result_bytes
        assert isinstance(_refused(prepared, floor - 1), InfeasibleError)


def test_what_was_asked_to_be_whole() -> None:
    for whole in ({"fission": ()}, {"split_batch": ()}, {"fixed_order": True}):
        prepared = prepare(chain(), replace(ASKED, **whole))
        assert isinstance(_refused(prepared, WHOLE // 2), InfeasibleError), whole


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_a_proof_for_one_order_is_not_told_of_a_plan_in_another(order: tuple[int, ...]) -> None:
    """A plan that is repeated for fewer bytes may have another order than the one before."""
    model = parse("""g (float[64] x, float[64] z) => (float[64] y) {
        a = Sin(x) b = Cos(z) y = Mul(a, b) }""")
    prepared = prepare(model, replace(ASKED, target="none", measure=False))
    problem = prepared.reduced.problem
    least = problem.least_seconds
    first, found = (
        Solution(
            Status.FEASIBLE, Schedule.of(problem, steps), least, (0,),
            Certificate(2 * least, "lazy-cuts(3)", any_order=False), "annealing",
        )
        for steps in ((0, 1, 2), order)
    )  # fmt: skip
    found = replace(found, time=3 * least)
    target = OneSession(prepared, Limit(1 << 40), Phases())
    candidate, _ = carried_out(target, Aim(target.limits), found, first)
    about, same = candidate.plan.provenance, order == (0, 1, 2)
    assert about.any_order is not same
    assert about.bound == pytest.approx((2 if same else 1) * least)
    other = replace(found, certificate=Certificate(least, "store-all", any_order=True))
    smallest = Smallest(carried_out(target, Aim(target.limits), other, other)[0], [*order], 0, "")
    answer = smallest.as_answer(target.limit, Unfit(target, first, {"cpu": 1}))
    assert answer.plan.provenance.bound_kind == "store-all"


@pytest.mark.parametrize("proven", [False, True])
def test_a_repeated_plan_keeps_the_order_of_which_alone_something_is_proven(proven: bool) -> None:
    model = parse("""g (float[64] x, float[64] z) => (float[64] y) {
        a = Sin(x) b = Cos(z) y = Mul(a, b) }""")
    prepared = prepare(model, replace(ASKED, target="none", measure=False))
    problem, order = prepared.reduced.problem, (1, 0, 2)
    first = Solution(
        Status.FEASIBLE, Schedule.of(problem, order), problem.least_seconds, (0,),
        Certificate(problem.least_seconds, "cuts", any_order=proven), "annealing",
    )  # fmt: skip
    target = OneSession(prepared, Limit(1 << 40), Phases())
    first = replace(first, peaks=(1 << 30,))
    aim = target.lower(Aim(target.limits), first, None, {"cpu": 1})
    again = target.solve(aim, PlanOptions(time_limit=LONG))
    assert again.schedule is not None
    assert again.schedule.first_runs == ((0, 1, 2) if proven else order)


def test_what_is_not_tried() -> None:
    prepared = prepare(chain(), replace(ASKED, measure=False))
    found = _refused(prepared, WHOLE // 2)
    assert isinstance(found, NoPlanError)
    assert "without a run" in found.why
    prepared = prepare(chain(), ASKED)
    found = _refused(prepared, WHOLE // 2, method=Method(formulation="cuts"))
    assert isinstance(found, NoPlanError)
    assert "cuts plans the whole alone" in found.why


def test_regions_that_go_and_are_not_known_to_keep_it() -> None:
    """The same with what the session takes counted, which many parts have more of; and settings of
    formulations are no other way."""
    prepared = prepare(chain(), replace(ASKED, not_counted=()))
    found = _refused(prepared, prepared.beside.total + WHOLE // 2, method=Method(most_columns=9))
    assert isinstance(found, NoPlanError)
    assert "no proof" in found.why
    assert "plans the whole alone" not in str(found)


def test_a_formulation_that_is_written_proves_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "WORK", 1000)  # regions are looked for, not all of them
    prepared = prepare(chain(), replace(ASKED, not_counted=()))
    asked = Request(
        prepared.beside.total + WHOLE // 2, options=WORK, write_model=tmp_path / "whole.mps"
    )
    with pytest.raises(NoPlanError, match="no plan"):
        optimize(prepared, asked)
    assert (tmp_path / "whole.mps").is_file()


def test_a_batch_of_more_ops_than_are_put_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are another way, which finds nothing here."""
    monkeypatch.setattr(batch_split, "MOST_OPS", 1)
    prepared = prepare(wide_chain(), ASKED)
    size = prepared.weights + prepared.graph.result_bytes + 1
    with pytest.raises(NoPlanError, match="no plan"):
        plan_best(prepared, parse_budget(size), WORK)


def test_an_op_that_is_whole_whatever_is_in_parts() -> None:
    prepared = prepare(parse(SORTED), ASKED)
    found = _refused(prepared, 3 * 65536 * 4)
    assert isinstance(found, InfeasibleError)
    assert "TopK" in found.why


def test_the_last_of_the_results_may_be_one_that_goes_in_parts() -> None:
    """All results and what the cheapest op to make the last of them needs, which is whole whatever
    is in parts: another one needs less where it is in parts."""
    prepared = prepare(
        parse(
            "g (float[4096] x, float[19, 64, 1] z) "
            "=> (float[1024] a, int64[1024] c, float[19, 64] b) "
            "<int64[1] k = {1024}, float[5] w = {1, 2, 3, 4, 5}, int64[1] axis = {2}> {"
            "u = Sin(x) a, c = TopK(u, k) p = Mul(z, w) b = ReduceSum<keepdims = 0>(p, axis) }"
        ),
        ASKED,
    )
    graph, need = prepared.graph, prepared.reduced.need
    order = sorted(graph.ops, key=lambda op: op.outputs[0] in "pb")
    names = tuple(op.name for op in order[2:])
    made = split(graph.with_ops(order), [Region(names, {"b": 0}, (1,) * 19, {})], 1)
    peak = simulate(made, scratch=prepared.costs.scratch, weight_bytes=prepared.weights).peak
    assert peak < need.bytes
    assert isinstance(_refused(prepared, peak), NoPlanError)  # regions keep the listed order
