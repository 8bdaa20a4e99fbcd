"""Schedules that have names: what each rank of a pipeline runs, in order.

gpipe         all F, then all BW (Huang et al., GPipe).
1f1b          a few F first, then F and BW in turn (Narayanan et al., PipeDream-Flush).
fast-forward  1f1b with the gradient sent on before W (Oh et al., Out-Of-Order BackProp: gradient
              fast-forwarding).
zb-h1         1f1b's F and B, each W later the further down the stage: in 1f1b's memory (Qi et al.,
              Zero Bubble Pipeline Parallelism).
zb-2p         the same with twice the F ahead, in twice the memory.
interleaved   several stages per rank, dealt out in turn (Narayanan et al., Megatron-LM).
zb-v          several stages per rank, dealt out to and fro, B and W apart, in 1f1b's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from onnxremat.errors import InfeasibleError, UsageError
from onnxremat.workers.pipeline import (
    BW,
    B,
    F,
    Order,
    Pipeline,
    Steps,
    W,
    blocks,
    code,
    folded,
    modulo,
)
from onnxremat.workers.pipelines import kernels
from onnxremat.workers.pipelines.arrays import shape_of, work_of
from onnxremat.workers.pipelines.replay import carry_out, fits, try_out

SEVERAL = ("interleaved", "zb-v")  # stages per rank
NAMED = ("1f1b", "fast-forward", "zb-h1", "zb-2p", "gpipe", *SEVERAL)
AUTO = "auto"  # in place of a name: the best that is found
# Rules of `built`: which of B and F first, and how long W waits for them.
RULES = tuple((prefer, patience) for prefer in (0, 2, 1) for patience in (0.0, 0.5, 1.0))


def ranks_of(name: str, stages: int) -> int:
    """How many ranks a schedule takes for so many stages where nobody says."""
    return -(-stages // 2) if name in SEVERAL else stages


def homes_of(name: str, stages: int, ranks: int) -> tuple[int, ...]:
    """The rank of each stage in a schedule."""
    return {"interleaved": modulo, "zb-v": folded}.get(name, blocks)(stages, ranks)


def check_ranks(pipeline: Pipeline, ranks: int) -> None:
    """Raises:
    UsageError: more ranks than stages, or none.
    """
    if not 1 <= ranks <= pipeline.stages:
        raise UsageError(f"{pipeline.stages} stages cannot be on {ranks} ranks")


def named(pipeline: Pipeline, name: str, ranks: int | None = None) -> Order:
    """A schedule by its name.

    Raises:
        UsageError: unknown, or not for so many ranks.
        InfeasibleError: it keeps more micro-batches alive than the pipeline lets it.
    """
    if name not in NAMED:
        raise UsageError(f"unknown schedule '{name}'", hint=f"known are {', '.join(NAMED)}, auto")
    stages = pipeline.stages
    count = ranks_of(name, stages) if ranks is None else ranks
    check_ranks(pipeline, count)
    if name not in SEVERAL and count != stages:
        raise UsageError(
            f"schedule '{name}' has one stage per rank, not {stages} on {count}",
            hint=f"--schedule {' or '.join(SEVERAL)}, or auto",
        )
    order = MAKERS[name](pipeline, count)
    replay = carry_out(pipeline, order)
    if not fits(replay, pipeline.in_flight):
        raise InfeasibleError(
            f"schedule '{name}' keeps {max(replay.peak)} micro-batches alive",
            where=f"stage {int(np.argmax(replay.peak))}",
            why=f"the limit is {pipeline.in_flight} (--in-flight)",
            hint="--schedule auto, or a higher limit",
        )
    return order


def _gpipe(pipeline: Pipeline, ranks: int) -> Order:
    m = pipeline.micro_batches
    rows = (np.repeat([code(s, F), code(s, BW)], m) for s in range(ranks))
    return _order("gpipe", rows)


def gpipe_apart(pipeline: Pipeline) -> Order:
    """gpipe with gradient fast-forwarding: all F, then B and W of each micro-batch."""
    m = pipeline.micro_batches
    rows = (
        np.concatenate([np.repeat(code(s, F), m), np.tile([code(s, B), code(s, W)], m)])
        for s in range(pipeline.stages)
    )
    return _order("gpipe fast-forward", rows)


def _order(name: str, rows: Iterator[Steps]) -> Order:
    steps = tuple(np.asarray(row, np.int32) for row in rows)
    return Order(name, tuple(range(len(steps))), steps)


def _one_forward_one_backward(pipeline: Pipeline, ranks: int) -> Order:
    rows = (_in_turn(pipeline, s, 1, [code(s, BW)]) for s in range(ranks))
    return _order("1f1b", rows)


def _fast_forward(pipeline: Pipeline, ranks: int) -> Order:
    rows = (_in_turn(pipeline, s, 1, [code(s, B), code(s, W)]) for s in range(ranks))
    return _order("fast-forward", rows)


def _in_turn(pipeline: Pipeline, s: int, ahead: int, backward: list[int]) -> Steps:
    """``ahead`` F per stage below, then one F and one backward pass in turn."""
    m = pipeline.micro_batches
    first = min(ahead * (pipeline.stages - 1 - s), m)
    turns = np.tile([code(s, F), *backward], m - first)
    parts = [np.repeat(code(s, F), first), turns, np.tile(backward, first)]
    return np.concatenate(parts).astype(np.int32)


def _zero_bubble(name: str, ahead: int) -> Callable[[Pipeline, int], Order]:
    def make(pipeline: Pipeline, ranks: int) -> Order:
        rows = (_postponed(pipeline, s, ahead) for s in range(ranks))
        return _order(name, rows)

    return make


def _postponed(pipeline: Pipeline, s: int, ahead: int) -> Steps:
    """W of stage s comes ``ahead * s`` micro-batches later than its B."""
    steps, seen, wait = [], 0, ahead * s
    for step in _in_turn(pipeline, s, ahead, [code(s, B)]).tolist():
        steps.append(step)
        if step == code(s, B):
            seen += 1
            if seen > wait:
                steps.append(code(s, W))
    left = min(wait, pipeline.micro_batches)
    return np.array([*steps, *[code(s, W)] * left], np.int32)


def _interleaved(pipeline: Pipeline, ranks: int) -> Order:
    """Groups of as many micro-batches as ranks go through the stages of a rank in turn."""
    homes = homes_of("interleaved", pipeline.stages, ranks)
    for more in range(pipeline.micro_batches * pipeline.stages + 1):
        rows = tuple(_megatron(pipeline, homes, r, ranks, more) for r in range(ranks))
        order = Order("interleaved", homes, rows)
        if try_out(pipeline, order) is not None:
            return order
    raise AssertionError  # all F first never ends up waiting


def _megatron(pipeline: Pipeline, homes: tuple[int, ...], r: int, ranks: int, more: int) -> Steps:
    own = [s for s, home in enumerate(homes) if home == r]
    forward, backward = [], []
    for group in range(0, pipeline.micro_batches, ranks):
        size = min(ranks, pipeline.micro_batches - group)
        forward += [code(s, F) for s in own for _ in range(size)]
        backward += [code(s, BW) for s in reversed(own) for _ in range(size)]
    first = min(2 * (ranks - 1 - r) + (len(own) - 1) * ranks + more, len(forward))
    turns = [each for pair in zip(forward[first:], backward, strict=False) for each in pair]
    rest = backward[len(forward) - first :]
    return np.array([*forward[:first], *turns, *rest], np.int32)


def _zb_v(pipeline: Pipeline, ranks: int) -> Order:
    """By the rule that ends first, in the memory of 1f1b: one micro-batch per rank in each stage,
    on the whole."""
    homes = homes_of("zb-v", pipeline.stages, ranks)
    orders = [built(pipeline, homes, *rule, room=ranks) for rule in RULES]
    replays = [carry_out(pipeline, order) for order in orders if order]
    best = min(replays, key=lambda replay: replay.makespan)
    return Order("zb-v", homes, best.order.steps)


def built(
    pipeline: Pipeline,
    homes: tuple[int, ...],
    prefer: int,
    patience: float,
    room: int | None = None,
) -> Order | None:
    """An order in which each rank takes what is ready; see :func:`.kernels.construct`. None where
    that leads nowhere.

    Args:
        room: most micro-batches alive on a rank, on average over its stages.
    """
    held = np.bincount(homes)
    shape = shape_of(pipeline, homes, [3 * pipeline.micro_batches * int(n) for n in held])
    if room is not None:
        shape = shape._replace(room=np.minimum(shape.room, room * held).astype(np.int64))
    steps = np.zeros(int(shape.begin[-1]), np.int32)
    if not kernels.construct(shape, work_of(shape), steps, prefer, patience):
        return None
    return Order("list", homes, tuple(np.split(steps, shape.begin[1:-1])))


MAKERS: dict[str, Callable[[Pipeline, int], Order]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "fast-forward": _fast_forward,
    "zb-h1": _zero_bubble("zb-h1", 1),
    "zb-2p": _zero_bubble("zb-2p", 2),
    "interleaved": _interleaved,
    "zb-v": _zb_v,
}
