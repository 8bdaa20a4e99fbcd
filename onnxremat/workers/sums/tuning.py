"""From the first steps of a run to the exchange it goes on with."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from onnxremat.errors import ModelError
from onnxremat.workers.courier import Courier
from onnxremat.workers.mpi import Ranks
from onnxremat.workers.sums.exchange import (
    WORTH,
    Exchange,
    Measured,
    Network,
    Simulated,
    best,
    of_parts,
    replayed,
    simulate,
)
from onnxremat.workers.sums.layers import Key
from onnxremat.workers.sums.overlap import Overlapped

WARM, MEASURED, TRIAL, TURNS = 2, 6, 4, 5  # updates; of each exchange, so many times
IN_PLAIN_ORDER = WARM + MEASURED  # updates until then; one in between does not count
LATE = IN_PLAIN_ORDER + 1 + MEASURED
PROBE = 1 << 20  # bytes that the network is measured with


def measured_network(courier: Courier, ranks: Ranks) -> Network:
    """What a sum over all processes takes, in the best of a few; the same numbers everywhere."""
    seconds, common = [], courier.common.stretch(PROBE) if courier.common else None
    probe = (np.zeros(PROBE, np.uint8) if common is None else common).view(np.float32)
    for size in (4, PROBE):
        array, found = probe[: size // 4], list[float]()
        for _ in range(5):
            transfer = courier.add_up([array], "measuring the network")
            courier.wait(transfer)
            found.append(transfer.end - transfer.begin)
        seconds.append(min(found))
    latency, long = seconds
    return ranks.told(Network(latency, max(long - latency, 0.0) / (PROBE - 4)))


def in_steps(network: Network, rows: Sequence[Mapping[int, float]]) -> Network:
    """The network as sums of a step found it, which is not the one that nobody else uses.

    Args:
        rows: of each process, seconds of sums by their bytes, without what they lose to computing
            beside them. The least counts: who is ahead waits for the others first.
    """
    took = {size: min(row[size] for row in rows) for size in rows[0]}
    byte, latency = network.byte, network.latency
    if len(took) > 1:
        byte = max(byte, float(np.polyfit([*took], [*took.values()], 1)[0]))
        latency = max(latency, median(s - byte * size for size, s in took.items()))
    elif took:
        byte = max(byte, *((s - latency) / size for size, s in took.items()))
    return replace(network, latency=latency, byte=byte)


def slowest(ranks: Ranks, seconds: Mapping[Key, Sequence[float]]) -> dict[Key, float]:
    """Medians, of the process where each takes longest; all have to call."""
    each = {key: median(row) for key, row in seconds.items()}
    rows = ranks.everybody(each)
    return {key: max(row[key] for row in rows) for key in each}


@dataclass(frozen=True)
class Own:
    """What one process measured of a step, as the clock had it.

    Attributes:
        parts: seconds of parts.
        turn: seconds since the step before.
        sums: when those of each bucket were asked for, or the ones before were done, and when they
            were there; since the step began, which is when all have met.
    """

    parts: Mapping[Key, float]
    turn: float
    sums: Mapping[tuple[int, ...], tuple[float, float]]


def latest(runs: Overlapped, steps: int) -> list[Own]:
    """The latest steps, since nothing was kept; none where they were not one batch each."""
    rows, sums, before = runs.elapsed, list[dict[tuple[int, ...], tuple[float, float]]](), 0.0
    if any(len(row) != steps for row in (runs.begun, *rows.values())):
        return []
    for bucket, transfer in runs.sent:
        if not sums or bucket in sums[-1]:
            sums.append({})
        zero = runs.begun[min(len(sums), steps) - 1]
        sums[-1][bucket] = max(transfer.asked, before) - zero, transfer.end - zero
        before = transfer.end
    if len(sums) != steps:
        return []
    return [
        Own({key: row[k] for key, row in rows.items()}, runs.turns[k], sums[k])
        for k in range(steps)
    ]


class Tuning:
    """Chooses the exchange of a run.

    A few steps are measured in plain order, and a few with as many weight gradients last as can
    be; the best exchange is found by simulation; where it is another than the best in plain order,
    both are tried in turn, and these very steps simulated from what their parts and sums took. The
    other one stays where both say that it is quicker. The first process decides.

    Attributes:
        network: as measured, the same numbers in all processes.
        chosen: by simulation, and the best in plain order; None until they are known.
        tried: seconds of an update with plain order and with the other, in the trial.
        again: both simulated with what was measured in the trial; None until then.
        done: the exchange stays from now on.
    """

    def __init__(
        self,
        overlapped: Overlapped,
        ranks: Ranks,
        network: Network,
        sizes: Sequence[int],
        most: int,
    ) -> None:
        self._runs, self._ranks, self._sizes, self._most = overlapped, ranks, sizes, most
        self.network = network
        self.chosen: tuple[Simulated, Simulated] | None = None
        self.tried: tuple[list[float], list[float]] = ([], [])
        self.again: tuple[float, float] | None = None
        self.done = False
        self._updates, self._since, self._worked = 0, 0.0, 0.0
        self._plain: dict[Key, float] = {}  # seconds of parts
        self._turn = 0.0
        self._again: tuple[list[float], list[float]] = ([], [])

    def updated(self) -> None:
        """An update was asked for: the end of what counts as an iteration."""
        if self.done:
            return
        now, self._updates = time.perf_counter(), self._updates + 1
        if self._updates in (WARM, IN_PLAIN_ORDER + 1):
            self.begin()
            self._worked = self._runs.worked
        elif self._updates == IN_PLAIN_ORDER:
            self._measured()
        elif self._updates == LATE:
            self._choose(self._slowest())
            self.begin()
        elif self.chosen:
            self._try(now - self._since, *self.chosen)
        self._since = time.perf_counter()

    def begin(self) -> None:
        """What is measured begins."""
        runs = self._runs
        for row in (runs.seconds, runs.elapsed, runs.travelled, runs.turns, runs.begun, runs.sent):
            row.clear()

    def _slowest(self) -> dict[Key, float]:
        """Seconds of parts, of the process that takes longest: sums wait for it."""
        return slowest(self._ranks, self._runs.seconds)

    def _measured(self) -> None:
        """Parts and network are known in plain order."""
        self._plain = self._slowest()
        self._turn = min(self._ranks.everybody(median(self._runs.turns)))
        if self._runs.crowded:
            work = (self._runs.worked - self._worked) / (MEASURED * max(sum(self._sizes), 1))
            self.network = replace(self.network, work=self._ranks.told(work))
        took: dict[int, list[float]] = {}
        for size, seconds, beside in self._runs.travelled:
            took.setdefault(size, []).append(seconds - beside * self.network.work * size)
        told = self._ranks.everybody({size: median(row) for size, row in took.items()})
        self.network = in_steps(self.network, told)
        if not self._most:
            self._choose(None)
            return
        latest = simulate(of_parts(self._plain, self._sizes), self.network, self._most, 1)
        self._runs.exchange = self._ranks.told(latest.exchange)

    def _choose(self, late: Mapping[Key, float] | None) -> None:
        times = replace(of_parts(self._plain, self._sizes, late), turn=self._turn)
        quickest, plain = self.chosen = self._ranks.told(best(times, self.network, self._most))
        self._runs.exchange = plain.exchange
        self.done = quickest == plain

    def _try(self, seconds: float, quickest: Simulated, plain: Simulated) -> None:
        """Both in turn, ``TRIAL`` updates each, ``TURNS`` times; the first after a change does not
        count."""
        at = self._updates - LATE - 1
        which = at // TRIAL % 2
        if at % TRIAL:
            self.tried[which].append(seconds)
        if (at + 1) % TRIAL == 0:
            self._again[which].extend(self.simulated(TRIAL))
            self._runs.exchange = (plain, quickest)[1 - which].exchange
            self.begin()
        if at + 1 == 2 * TURNS * TRIAL:
            self._decide(quickest, plain)

    def simulated(self, steps: int) -> list[float]:
        """Seconds of the steps since :meth:`begin`, but the first, by simulation, from what every
        process measured in them; none where they were not one batch each. All have to call.

        Args:
            steps: how many there were, all with the exchange that is on.
        """
        everyone = self._ranks.everybody(latest(self._runs, steps))
        found = list[Measured]()
        for rows in zip(*everyone, strict=True) if all(everyone) else ():
            times = tuple(replace(of_parts(r.parts, self._sizes), turn=r.turn) for r in rows)
            sums = {
                bucket: max(r.sums[bucket][1] for r in rows) - max(r.sums[bucket][0] for r in rows)
                for bucket in rows[0].sums
            }
            found.append(Measured(times, sums))
        return replayed(self._runs.exchange, found) if found else []

    def _decide(self, quickest: Simulated, plain: Simulated) -> None:
        """The other order stays where the trial, and its simulation, say that it gains."""
        first, other = self._again
        rows = [(median(self.tried[0]), median(self.tried[1]))]
        if first and other:
            self.again = median(first), median(other)
            rows.append(self.again)
        gained = all(other < order * (1 - WORTH) for order, other in rows)
        self._runs.exchange = self._ranks.told((quickest if gained else plain).exchange)
        self.done = True

    def to_text(self) -> str:
        """The exchange, for a checkpoint; "" while it is not known yet."""
        if not self.done:
            return ""
        exchange = self._runs.exchange
        return json.dumps([self._ranks.size, exchange.late, exchange.buckets])

    def take(self, text: str) -> None:
        """Go on with the exchange of a checkpoint, where it was made by as many processes: more
        than two add up in an order that depends on it.

        Raises:
            ModelError: it is not one of this step.
        """
        try:
            size, late, buckets = json.loads(text)
            found = Exchange(int(late), tuple(tuple(map(int, row)) for row in buckets))
        except (ValueError, TypeError) as error:
            raise ModelError("the checkpoint's order of sums is unreadable", why=text) from error
        layers = sorted(layer for row in found.buckets for layer in row)
        if size == self._ranks.size and layers == list(range(len(self._sizes))):
            self._runs.exchange, self.done = found, True
