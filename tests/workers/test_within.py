"""Stages of a pipeline that compute again what they have no room for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.errors import NoPlanError
from onnxremat.graph.ir import Op
from onnxremat.workers.pipeline import B, F, Pipeline, W
from onnxremat.workers.pipelines.again import Again, Stage
from onnxremat.workers.pipelines.pipelined import PipelineParallel
from onnxremat.workers.pipelines.replay import Replay, carry_out
from onnxremat.workers.pipelines.schedules import named
from onnxremat.workers.pipelines.search import best_order
from onnxremat.workers.pipelines.staged import Wanted
from onnxremat.workers.pipelines.within import Beside, Within
from tests.toolbox import graph_of
from tests.workers.test_data_parallel import ALONE, several
from tests.workers.test_pipelined import (
    MICRO_BATCHES,
    SIZES,
    compare,
    planned,
    prepare,
    run,
    told,
)

LARGER = {"sequence": 96, "hidden": 128, "layers": 2, "heads": 4, "vocab": 50, "positions": 96}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(SIZES, "gpt2", LARGER)
    return prepare(tmp_path / "gpt2", "gpt2", optimizer="sgd")


def pipe(folder: Path, budget: int | None) -> PipelineParallel:
    step = onnx.load(folder / "step.onnx")
    wanted = Wanted(MICRO_BATCHES, "gpipe", budget=budget)
    return PipelineParallel(step, ranks=ALONE, wanted=wanted, threads=1, rate=0.01)


def test_a_budget_changes_no_bit_and_buffers_take_what_was_planned(folder: Path) -> None:
    batch, free = dict(np.load(folder / "data.npz")), pipe(folder, 1 << 40)
    expected = [free.step(batch) for _ in range(3)]
    (memory,) = free.staged.fitted.memory
    assert free.pool.peak == memory.values
    for share in (0.85, 0.6):
        tight = pipe(folder, int(memory.total - (1 - share) * memory.values))
        assert [tight.step(batch) for _ in range(3)] == expected
        for name, value in free.state.items():
            np.testing.assert_array_equal(tight.state[name], value, err_msg=name)
        (again,), (planned,) = tight.staged.fitted.again, tight.staged.fitted.memory
        assert again.ops
        assert tight.pool.peak == planned.values < share * memory.values
        assert planned.total <= memory.total - (1 - share) * memory.values
        assert 0 < again.bound <= again.seconds
    with pytest.raises(NoPlanError, match="process 0 needs more than the budget") as refused:
        pipe(folder, memory.total - memory.values)
    assert refused.value.smallest is not None
    pipe(folder, int(refused.value.smallest * 1.02))


@several
def test_two_processes_within_a_budget(folder: Path, tmp_path: Path) -> None:
    """Each alone holds what was planned, and the result is that of one process."""
    free = planned(folder, "gpipe", 3, budget=1 << 40)
    run(tmp_path, 2, [free])
    whole = told(folder, free)
    most = max(whole["budgets"])
    limit = int(most - 0.3 * max(whole["planned"]))
    cuts = ",".join(whole["cuts"])  # of other measured times others may come
    tight = planned(folder, "gpipe", 5, budget=limit, stages=cuts)
    run(tmp_path, 2, [tight])
    compare(folder, tight, 1e-5, 1e-5)
    facts = told(folder, tight)
    assert any(facts["again"])
    assert max(facts["budgets"]) <= tight["wanted"]["budget"]
    for peak, most in zip(facts["peak"], facts["planned"], strict=True):
        assert peak <= most
    assert max(facts["grew"]) <= limit


class Kept(Stage):
    """A stage that can make nothing again."""

    def __init__(self) -> None:
        """100 bytes for each micro-batch alive."""

    def everything_kept(self) -> Again:
        return Again(kept=100)

    def choose(self, room: int, alive: int, waiting: int) -> Again | None:
        return self.everything_kept() if 100 * alive <= room else None

    def least(self, alive: int, waiting: int) -> Again:
        return self.everything_kept()


def test_where_any_schedule_will_do_fewer_micro_batches_are_alive() -> None:
    """Rather than refuse a budget, which is refused with the least that was found."""
    pipeline = Pipeline((1.0,) * 4, (1.0,) * 4, (1.0,) * 4, 8)

    def scheduled(each: Pipeline) -> Replay:
        return best_order(each, 4, effort=50_000).replay

    def within(budget: int, any_order: bool) -> Within:
        return Within(
            pipeline, [Kept() for _ in range(4)], scheduled, lambda again: {},
            lambda rank: [Beside()] * 4, budget, any_order,
        )  # fmt: skip

    free = within(400, True).fit().replay
    assert max(free.peak) == 4
    tight = within(200, True).fit().replay
    assert max(tight.peak) <= 2
    assert tight.makespan > free.makespan
    for any_order, least in ((True, 200), (False, 400)):
        with pytest.raises(NoPlanError, match="needs more than the budget") as refused:
            within(99, any_order).fit()
        assert refused.value.smallest == least


class Lean(Kept):
    """A stage that can make four fifths again."""

    def choose(self, room: int, alive: int, waiting: int) -> Again | None:
        return super().choose(room, alive, waiting) or (
            self.least(alive, waiting) if 20 * alive <= room else None
        )

    def least(self, alive: int, waiting: int) -> Again:
        return Again(("op",), seconds=0.5, kept=20)


def test_a_budget_is_kept_that_the_leanest_stages_keep() -> None:
    """Though the stages of a rank have other shares of it than they need."""
    pipeline = Pipeline((1.0,) * 2, (1.0,) * 2, (1.0,) * 2, 3)

    def within(budget: int) -> Within:
        return Within(
            pipeline, [Kept(), Lean()], lambda each: carry_out(each, named(each, "interleaved", 1)),
            lambda again: {}, lambda rank: [Beside()], budget,
        )  # fmt: skip

    with pytest.raises(NoPlanError) as refused:
        within(99).fit()
    assert refused.value.smallest is not None
    found = within(refused.value.smallest).fit()
    assert [bool(each.ops) for each in found.again] == [False, True]
    assert found.memory[0].total == refused.value.smallest


def chain() -> tuple[Stage, dict[str, int]]:
    """Six ops of different sizes; B reads four of their values, W three."""
    graph = graph_of("""g (float[8] x) => (float[8] g, float[64] v) {
        a = Sin(x)  two = Constant<value_ints=[8]>()
        b = Expand(a, two)  c = Cos(b)  d = Neg(c)  e = Sin(d)  f = Cos(e)
        g0 = Add(f, a)  g1 = Mul(g0, c)  g = Mul(g1, e)
        w0 = Mul(b, g)  w1 = Add(w0, d)  v = Concat<axis=0>(w1, w1, w1, w1, w1, w1, w1, w1)
    }""")
    ops: Mapping[str, Op] = {op.writes[0]: op for op in graph.ops}
    seconds = dict(zip("abcdef", (3.0, 1.0, 2.0, 1.5, 4.0, 0.5), strict=True))

    def of(names: str) -> Sequence[Op]:
        return [ops[name] for name in names.split()]

    parts = {
        (F, 0): [op for op in graph.ops if op.writes[0] in (*"abcdef", "two")],
        (B, 0): of("g0 g1 g"), (W, 0): of("w0 w1 v"),
    }  # fmt: skip
    stage = Stage.of(graph, parts, 0, {}, {ops[name].name: s for name, s in seconds.items()})
    return stage, {name: graph.tensors[name].bytes for name in "abcdef"}


def every_choice(stage: Stage, alive: int, waiting: int) -> list[Again]:
    """All sets of ops that may run again, by what they take."""
    ops = sorted({op.name for op in stage.free.values()})
    sets = itertools.chain.from_iterable(
        itertools.combinations(ops, n) for n in range(len(ops) + 1)
    )
    return [stage._chosen(set(names), 0.0) for names in sets]


@pytest.mark.parametrize(("alive", "waiting"), [(1, 1), (4, 1), (4, 3)])
def test_no_choice_of_ops_is_better(alive: int, waiting: int) -> None:
    stage, _ = chain()
    choices = every_choice(stage, alive, waiting)
    sizes = sorted({each.bytes(alive, waiting) for each in choices})
    assert stage.least(alive, waiting).bytes(alive, waiting) == sizes[0]
    assert stage.choose(sizes[0] - 1, alive, waiting) is None
    for room in sizes:
        best = min(each.seconds for each in choices if each.bytes(alive, waiting) <= room)
        found = stage.choose(room, alive, waiting)
        assert found is not None
        assert found.bytes(alive, waiting) <= room
        assert found.seconds == pytest.approx(best, rel=1e-3)
        assert found.bound <= best * (1 + 1e-9)
