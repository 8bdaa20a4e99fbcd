"""Paired, interleaved timing: medians and ratios that a busy machine does not bend."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from onnxremat.ort.profile import Feeds, run_session
from onnxremat.ort.session import Options, open_session, session_options


@dataclass(frozen=True)
class Contender:
    """A model and the options it runs with."""

    name: str
    model: onnx.ModelProto | str | Path
    options: Options
    folder: Path | None = None


@dataclass(frozen=True)
class Timing:
    """One contender's time against the first one's.

    Attributes:
        seconds: median of its runs.
        ratio: median over rounds of its time / the first contender's time of that round.
        spread: half the interquartile range of these ratios.
        rounds: how many rounds were run.
    """

    name: str
    seconds: float
    ratio: float
    spread: float
    rounds: int


def bench(
    contenders: Sequence[Contender],
    feeds: Feeds,
    *,
    seconds: float = 10.0,
    rounds: tuple[int, int] = (5, 60),
    stop: Callable[[], bool] | None = None,
) -> list[Timing]:
    """Run the contenders in turn, each round in a shuffled order.

    A run finds the caches as the run before left them, so no contender may always follow itself
    or always another one.

    Args:
        contenders: the first is the reference.
        seconds: stop after this long, within the limits of ``rounds``.
        stop: ends early when it says so (after one round at least).
    """
    sessions = [
        open_session(
            str(c.model) if isinstance(c.model, Path) else c.model,
            session_options(c.options),
            c.folder,
        )
        for c in contenders
    ]
    for session in sessions:
        run_session(session, feeds, 2)
    times: list[list[float]] = [[] for _ in sessions]
    shuffle = random.Random(0)
    start = time.perf_counter()
    while len(times[0]) < rounds[1]:
        late = time.perf_counter() - start > seconds and len(times[0]) >= rounds[0]
        if late or (stop and stop() and times[0]):
            break
        turn = list(range(len(sessions)))
        shuffle.shuffle(turn)
        for index in turn:
            begin = time.perf_counter()
            run_session(sessions[index], feeds)
            times[index].append(time.perf_counter() - begin)
    return [timing(c.name, row, times[0]) for c, row in zip(contenders, times, strict=True)]


def timing(name: str, row: list[float], reference: list[float]) -> Timing:
    """Seconds of each round against the reference's of the same round."""
    ratios = sorted(a / b for a, b in zip(row, reference, strict=True))
    quarter = len(ratios) // 4
    spread = (ratios[-1 - quarter] - ratios[quarter]) / 2
    return Timing(name, statistics.median(row), statistics.median(ratios), spread, len(row))
