"""The best order of a pipeline: named schedules, orders made by rules, and annealing.

Deterministic: what is spent is counted in actions replayed, not in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from onnxremat.errors import InfeasibleError, NoPlanError
from onnxremat.planner.search.compiled import generator
from onnxremat.workers.pipeline import BW, B, Order, Pipeline, Steps, W, blocks
from onnxremat.workers.pipelines import kernels
from onnxremat.workers.pipelines.arrays import shape_of, work_of
from onnxremat.workers.pipelines.bound import lower_bound
from onnxremat.workers.pipelines.replay import Replay, carry_out, fits
from onnxremat.workers.pipelines.schedules import (
    NAMED,
    RULES,
    SEVERAL,
    built,
    check_ranks,
    homes_of,
    named,
    ranks_of,
)

EFFORT = 20_000_000  # actions replayed while annealing, and as many by rules
TIE = 1e-9  # shares of a makespan that count as equal


@dataclass(frozen=True)
class Found:
    """The best order found.

    Attributes:
        replay: it, carried out; its order has the name of what found it: a schedule, ``list`` (a
            rule) or ``annealing``.
        bound: seconds that no order goes below with the stages dealt out in any of the ways tried.
    """

    replay: Replay
    bound: float


def best_order(
    pipeline: Pipeline, ranks: int | None = None, *, effort: int = EFFORT, seed: int = 0
) -> Found:
    """The order that ends first, with few micro-batches alive where several do.

    Never worse than a named schedule that keeps the limits, on as many ranks or fewer.

    Args:
        ranks: most ranks; as many as stages where nobody says.
        effort: actions to replay per limit tried.

    Raises:
        UsageError: more ranks than stages.
        NoPlanError: no rule leads anywhere within ``pipeline.in_flight``.
    """
    count = pipeline.stages if ranks is None else ranks
    check_ranks(pipeline, count)
    bounds = {homes: lower_bound(pipeline, homes) for homes in _ways(pipeline.stages, count)}
    best: Replay | None = None
    for limit in _limits(pipeline, count):
        search = _Search(replace(pipeline, in_flight=limit), count, bounds, effort, best)
        best = search.run(seed)
        if search.done():
            break
    if best is None:
        raise NoPlanError(
            f"no order found with at most {pipeline.in_flight} micro-batches alive",
            hint="a higher --in-flight, or as many ranks as stages",
        )
    return Found(replace(best, pipeline=pipeline), min(bounds.values()))


def _limits(pipeline: Pipeline, ranks: int) -> list[int]:
    """Micro-batches alive to try: those of 1f1b, about twice as many, all."""
    most = min(pipeline.in_flight or pipeline.micro_batches, pipeline.micro_batches)
    return sorted({min(limit, most) for limit in (ranks, 2 * ranks - 1, most)})


def _ranks(name: str, stages: int, ranks: int) -> tuple[int, ...]:
    """Ranks that a schedule is tried with: what it takes where nobody says, and all there are."""
    return tuple(dict.fromkeys((min(ranks, ranks_of(name, stages)), ranks)))


def _ways(stages: int, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Stages on ranks, in the ways that are tried: first those that use all ranks."""
    several = (
        homes_of(name, stages, count) for name in SEVERAL for count in _ranks(name, stages, ranks)
    )
    return tuple(dict.fromkeys((blocks(stages, ranks), *several)))


class _Search:
    """The search within one limit of micro-batches alive.

    Attributes:
        bounds: seconds that no order goes below, per way of dealing out stages.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        ranks: int,
        bounds: Mapping[tuple[int, ...], float],
        effort: int,
        best: Replay | None,
    ) -> None:
        self.pipeline, self.ranks, self.bounds = pipeline, ranks, bounds
        self.effort, self.best = effort, best

    def done(self) -> bool:
        """Whether nothing can be better."""
        best = self.best
        return best is not None and best.makespan <= min(self.bounds.values()) * (1 + TIE)

    def run(self, seed: int) -> Replay | None:
        """The best order found so far."""
        for candidate in (*self._named(), *self._by_rules()):
            self.best = candidate if self.best is None else _better(self.best, candidate)
            if self.done():
                return self.best
        if self.best is not None and fits(self.best, self.pipeline.in_flight):
            self.best = _better(self.best, self._annealed(self.best, seed))
        return self.best

    def _hopeful(self, homes: tuple[int, ...]) -> bool:
        return self.best is None or self.bounds[homes] < self.best.makespan

    def _named(self) -> Iterator[Replay]:
        """Named schedules, as far as they keep the limits."""
        stages = self.pipeline.stages
        for name in NAMED:
            for ranks in _ranks(name, stages, self.ranks):
                homes = homes_of(name, stages, ranks)
                if (name not in SEVERAL and ranks < stages) or not self._hopeful(homes):
                    continue
                try:
                    order = named(self.pipeline, name, ranks)
                except InfeasibleError:
                    continue
                yield carry_out(self.pipeline, order)

    def _by_rules(self) -> Iterator[Replay]:
        for homes in self.bounds:
            actions = 3 * self.pipeline.stages * self.pipeline.micro_batches
            spent = actions * (max(homes) + 1)
            least = self.best is None  # no named schedule keeps the limit: one has to be found
            for rule in RULES[: max(self.effort // spent, least)]:
                order = built(self.pipeline, homes, *rule) if self._hopeful(homes) else None
                if order is not None:
                    yield carry_out(self.pipeline, order)

    def _annealed(self, start: Replay, seed: int) -> Replay:
        """An order by small changes of one, B and W apart: a fused BW sends its gradient late."""
        rows = [apart(row) for row in start.order.steps]
        shape = shape_of(self.pipeline, start.order.rank, [len(row) for row in rows])
        steps = np.concatenate(rows)
        best, path = steps.copy(), np.zeros(len(steps), np.int64)
        goal = min(self.bounds.values()) * (1 + TIE)
        rounds, random = self.effort // len(steps), generator(seed + 1)
        kernels.improve(steps, shape, work_of(shape), best, path, random, rounds, goal)
        found = Order("annealing", start.order.rank, tuple(np.split(best, shape.begin[1:-1])))
        return carry_out(self.pipeline, found)


def _better(one: Replay, other: Replay) -> Replay:
    """The one that ends first; of equal ones, with fewer alive."""
    if other.makespan < one.makespan * (1 - TIE):
        return other
    if other.makespan > one.makespan * (1 + TIE):
        return one
    return min(one, other, key=lambda each: (max(each.peak), sum(each.peak)))


def apart(steps: Steps) -> Steps:
    """Every BW as a B and a W after it."""
    fused = steps % 4 == BW
    split = np.repeat(steps, 1 + fused)
    first = np.flatnonzero(fused) + np.arange(int(fused.sum()))
    split[first] += B - BW
    split[first + 1] += W - BW
    return split
