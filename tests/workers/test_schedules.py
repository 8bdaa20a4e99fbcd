"""Schedules of pipelines: exact makespans, the search, and its bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from onnxremat.errors import InfeasibleError, OnnxrematError, UsageError
from onnxremat.workers.pipeline import (
    B,
    F,
    Order,
    Pipeline,
    W,
    blocks,
    code,
    folded,
    modulo,
)
from onnxremat.workers.pipelines.bound import lower_bound
from onnxremat.workers.pipelines.replay import carry_out, try_out
from onnxremat.workers.pipelines.schedules import NAMED, SEVERAL, gpipe_apart, named
from onnxremat.workers.pipelines.search import apart, best_order

# Stages, micro-batches, communication; least possible, gpipe, the same fast-forwarded, 1f1b,
# fast-forward, zb-h1; F = B = W = 1. From a simulator of its own.
EXACT = (
    (2, 4, 0.0, 13, 15, 14, 15, 14, 13),
    (2, 8, 0.0, 25, 27, 26, 27, 26, 25),
    (4, 8, 0.0, 27, 33, 30, 33, 30, 27),
    (4, 16, 0.0, 51, 57, 54, 57, 54, 51),
    (8, 32, 0.0, 103, 117, 110, 117, 110, 103),
    (2, 8, 0.25, 25.25, 27.5, 26.5, 29, 26.5, 26),
    (4, 8, 0.25, 27.75, 34.5, 31.5, 37, 31.5, 30),
    (8, 32, 0.25, 104.75, 120.5, 113.5, 134, 113.5, 110),
)


def even(stages: int, batches: int, lag: float = 0.0, limit: int | None = None) -> Pipeline:
    """F, B and W of a second each."""
    ones = (1.0,) * stages
    return Pipeline(ones, ones, ones, batches, (lag,) * (stages - 1), limit)


@pytest.mark.parametrize("row", EXACT, ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_named_schedules_take_exactly_so_long(row: tuple[float, ...]) -> None:
    stages, batches, lag, least, gpipe, gpipe_forward, *others = row
    pipeline = even(int(stages), int(batches), lag)
    orders = [named(pipeline, "gpipe"), gpipe_apart(pipeline)]
    orders += [named(pipeline, name) for name in ("1f1b", "fast-forward", "zb-h1")]
    found = [carry_out(pipeline, order) for order in orders]
    assert [each.makespan for each in found] == [gpipe, gpipe_forward, *others]
    assert [max(each.peak) for each in found] == [batches] * 2 + [stages] * 3
    assert lower_bound(pipeline, range(int(stages))) == least


@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 8), (8, 32)])
def test_auto_reaches_the_bound_in_the_memory_of_1f1b(stages: int, batches: int) -> None:
    found = best_order(even(stages, batches))
    assert found.replay.makespan == found.bound == stages - 1 + 3 * batches
    assert max(found.replay.peak) <= stages


def draw(seed: int) -> Pipeline:
    """Stages, times and transfers at random."""
    r = random.Random(seed)
    stages = r.randint(2, 5)
    rows = [tuple(r.uniform(0.2, 3) for _ in range(stages)) for _ in range(3)]
    most = r.choice((0.0, 0.3, 2.0))
    lag = tuple(r.uniform(0, most) for _ in range(stages - 1))
    return Pipeline(*rows, r.randint(1, 8), lag, r.choice((None, None, 2, 3)))


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_auto_never_loses_to_a_named_schedule(first: int) -> None:
    for seed in range(first, first + 50):
        pipeline = draw(seed)
        found = best_order(pipeline, effort=100_000)
        assert found.bound <= found.replay.makespan * (1 + 1e-9)
        assert pipeline.in_flight is None or max(found.replay.peak) <= pipeline.in_flight
        for name in NAMED:
            try:
                order = named(pipeline, name)
            except InfeasibleError:
                continue
            other = carry_out(pipeline, order)
            assert found.replay.makespan <= other.makespan * (1 + 1e-9), (seed, name)
            assert lower_bound(pipeline, order.rank) <= other.makespan * (1 + 1e-9), (seed, name)


@pytest.mark.parametrize("ranks", [3, 4])
def test_auto_never_loses_to_a_named_schedule_on_as_many_ranks(ranks: int) -> None:
    """Where all ranks are used, which may be more than the schedule takes by itself."""
    for seed in range(40):
        pipeline = draw(seed)
        if pipeline.stages < ranks:
            continue
        found = best_order(pipeline, ranks, effort=1)
        for name in SEVERAL:
            try:
                other = carry_out(pipeline, named(pipeline, name, ranks))
            except InfeasibleError:
                continue
            assert found.bound <= found.replay.makespan * (1 + 1e-9)
            assert found.replay.makespan <= other.makespan * (1 + 1e-9), (seed, name)


def rows_of(stage: int, batches: int) -> Iterator[np.ndarray]:
    """Every order of a stage's actions in which B follows F and W follows B."""
    steps = [code(stage, kind) for kind in (F, B, W) for _ in range(batches)]
    for row in sorted(set(itertools.permutations(steps))):
        counts = np.cumsum([[step == code(stage, kind) for kind in (F, B, W)] for step in row], 0)
        if (np.diff(counts, axis=1) <= 0).all():
            yield np.array(row, np.int32)


@pytest.mark.parametrize("seed", range(6))
def test_two_stages_are_solved_to_the_optimum(seed: int) -> None:
    """Against every order there is."""
    r = random.Random(seed)
    times = [(r.uniform(0.2, 3), r.uniform(0.2, 3)) for _ in range(3)]
    limit = r.choice((None, 1, 2))
    pipeline = Pipeline(*times, 2, (r.uniform(0, 1),), limit)
    least = np.inf
    for rows in itertools.product(rows_of(0, 2), rows_of(1, 2)):
        replay = try_out(pipeline, Order("any", (0, 1), rows))
        if replay and (limit is None or max(replay.peak) <= limit):
            least = min(least, replay.makespan)
    assert lower_bound(pipeline, (0, 1)) <= least * (1 + 1e-9)
    assert best_order(pipeline, effort=200_000).replay.makespan <= least * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("stages", "batches"), [(1, 3), (3, 1), (5, 4), (6, 7), (8, 3)])
def test_every_schedule_runs_everything_once(name: str, stages: int, batches: int) -> None:
    pipeline = even(stages, batches, 0.1)
    replay = carry_out(pipeline, named(pipeline, name))
    ran = {(each.stage, kind, each.micro_batch) for each in replay.actions() for kind in each.kind}
    assert ran == set(itertools.product(range(stages), "FBW", range(batches)))
    assert sum(len(each.kind) for each in replay.actions()) == len(ran)
    busy = (replay.end - replay.start).sum()
    assert busy == pytest.approx(pipeline.work)
    assert replay.bubble == pytest.approx(1 - busy / (replay.order.ranks * replay.makespan))


def test_several_stages_of_a_rank_leave_smaller_holes() -> None:
    """8 stages on 4 ranks: both beat 1f1b of 4 stages twice as long."""
    halves = Pipeline((0.5,) * 8, (0.5,) * 8, (0.5,) * 8, 8)
    found = {name: carry_out(halves, named(halves, name)) for name in SEVERAL}
    assert found["interleaved"].order.rank == (0, 1, 2, 3, 0, 1, 2, 3)
    assert found["zb-v"].order.rank == (0, 1, 2, 3, 3, 2, 1, 0)
    assert found["interleaved"].makespan < 33  # 1f1b
    assert found["zb-v"].makespan < 27  # zb-h1
    best = best_order(halves, 4)
    assert best.replay.makespan <= min(each.makespan for each in found.values())


def test_limits_are_kept_or_refused() -> None:
    tight = even(4, 8, 0.0, 2)
    with pytest.raises(InfeasibleError, match="keeps 4 micro-batches"):
        named(tight, "1f1b")
    found = best_order(tight)
    assert max(found.replay.peak) == 2
    assert found.bound <= found.replay.makespan
    alone = best_order(even(3, 4, 0.5, 1))
    assert alone.replay.peak == (1, 1, 1)
    assert alone.replay.makespan == alone.bound


def test_orders_that_wait_for_ever_are_refused() -> None:
    first = np.array([code(0, B), code(0, F), code(0, W)], np.int32)
    with pytest.raises(OnnxrematError, match="never ends"):
        carry_out(even(1, 1), Order("odd", (0,), (first,)))


def test_stages_on_ranks() -> None:
    assert blocks(5, 2) == (0, 0, 0, 1, 1)
    assert modulo(5, 2) == (0, 1, 0, 1, 0)
    assert folded(5, 3) == (0, 1, 2, 2, 1)
    assert apart(np.array([0, 3, 0, 3], np.int32)).tolist() == [0, 1, 2, 0, 1, 2]


def test_what_cannot_be_is_refused() -> None:
    for rows, batches, lag in (
        (((), (), ()), 1, ()),
        (((1.0,), (1.0,), (1.0, 1.0)), 1, ()),
        (((0.0,), (1.0,), (1.0,)), 1, ()),
        (((1.0,), (float("nan"),), (1.0,)), 1, ()),
        (((1.0, 1.0),) * 3, 0, ()),
        (((1.0, 1.0),) * 3, 10**9, ()),
        (((1.0, 1.0),) * 3, 1, (1.0, 1.0)),
    ):
        with pytest.raises(UsageError):
            Pipeline(*rows, batches, lag)
    for name, ranks in (("dual", None), ("1f1b", 2), ("zb-v", 9)):
        with pytest.raises(UsageError):
            named(even(4, 2), name, ranks)
    with pytest.raises(UsageError):
        best_order(even(4, 2), 5)


def test_a_thousand_ranks() -> None:
    pipeline = even(1024, 16, 0.1)
    found = best_order(pipeline, effort=1_000_000)
    assert found.replay.makespan <= carry_out(pipeline, named(pipeline, "zb-h1")).makespan
    assert found.bound <= found.replay.makespan
