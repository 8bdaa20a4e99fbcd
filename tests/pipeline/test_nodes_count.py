"""Parts are nodes, of which a session keeps structures: budgets of a process count them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import NO_FIT
from onnxremat.fission import choose
from onnxremat.fission.choosers import Choosers
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.in_parts.divided import prepare_fission
from onnxremat.pipeline.in_parts.in_regions import wholes_of
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Refusal
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.ways import plan_within_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.units import parse_budget
from tests.fission.test_choose import bottlenecks

SETTINGS = Settings(threads=1, costs=analytic_costs)
OPTIONS = PlanOptions(work=2, threads=1)


@pytest.fixture(scope="module")
def blocks() -> Prepared:
    """Wide values of 128 KiB, between narrow ones: parts spare less than sessions keep of many."""
    return prepare(bottlenecks(rows=32, wide=32, blocks=1), SETTINGS)


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_what_a_session_keeps_of_parts_is_foretold(blocks: Prepared, share: float) -> None:
    ways = wholes_of(blocks.graph, blocks.costs, blocks.folder, structures=True)
    alone = [replace(way, kept=type(way.kept)()) for way in ways]
    regions = Choosers(alone).within(int(share * Choosers(alone).whole.peak)).regions
    assert regions
    split = prepare_fission(blocks, regions, Phases())
    told, plain = (Choosers(each)._made[0].price(regions) for each in (ways, alone))
    assert told is not None
    assert plain is not None
    more = split.beside.total - blocks.beside.total
    assert 0.9 * more < told.peak - plain.peak < 1.3 * more


def test_the_least_is_that_of_a_process(blocks: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of weights and values alone where nothing else counts, as for a share of these."""
    for name in ("WORK", "FINE", "TUNING"):
        monkeypatch.setattr(choose, name, 3000)

    def within(budget: str, **how: object) -> Candidate:
        settings = replace(blocks.settings, **how)  # type: ignore[arg-type]
        return plan_within_budget(replace(blocks, settings=settings), parse_budget(budget), OPTIONS)

    parts = within("min")
    alone = within("min", not_counted=("inputs", "session"))
    assert parts.process <= blocks.store_all_peak + blocks.beside.total + 4096  # pins
    assert alone.held < 0.7 * parts.held
    with pytest.raises(NO_FIT) as refused:
        within("0.02x")
    works = Refusal.of(refused.value).works
    assert works is not None
    assert works.fits <= 1.05 * alone.held
    with pytest.raises(NO_FIT) as refused:
        within(str(parts.process // 2))
    works = Refusal.of(refused.value).works
    assert works is not None
    assert works.size <= 1.05 * parts.process
