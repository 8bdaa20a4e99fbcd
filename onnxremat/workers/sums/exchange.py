"""When gradients are added up over processes, and in which order they are made: by simulation.

In plain order the gradients of the first layer are made last, yet the next forward pass wants that
layer first. *Reverse first-k* (Oh et al., Out-Of-Order BackProp) makes the weight gradients of the
first k layers after everything else, the first layer first: their sums then travel in the order in
which they are wanted, while later ones are still being made and while the next forward pass runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onnxremat.workers.pipeline import B, F, W
from onnxremat.workers.sums.layers import Key, U, in_turn

MOST = 8  # layers
LITTLE = 0.02  # of a step: what may be left of the exchange that nothing goes on beside
WORTH = 0.02  # of an iteration: what a change from plain order has to gain; less is noise


@dataclass(frozen=True)
class Times:
    """Seconds per layer.

    Attributes:
        forward, chain, weight: of the parts of a step.
        sizes: bytes of gradients.
        update: of parameters, before the next forward pass; () for none.
        apart: of chain and weight part of each layer where others run between the two, when the
            second finds less of what it reads in caches; () for as above.
        turn: between the last part of a batch and the first of the next.
    """

    forward: tuple[float, ...]
    chain: tuple[float, ...]
    weight: tuple[float, ...]
    sizes: tuple[int, ...]
    update: tuple[float, ...] = ()
    apart: tuple[tuple[float, float], ...] = ()
    turn: float = 0.0

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.forward)

    @property
    def compute(self) -> float:
        """Seconds of a step without waiting."""
        return sum(self.forward) + sum(self.chain) + sum(self.weight)

    def wanted(self, layer: int) -> float:
        """Of forward part and update, which need the layer's sums."""
        return self.forward[layer] + (self.update[layer] if self.update else 0.0)

    def backward(self, layer: int, late: int) -> tuple[float, float]:
        """Of chain and weight part, where those of the first ``late`` layers come last."""
        together = self.chain[layer], self.weight[layer]
        return self.apart[layer] if self.apart and layer < late else together


@dataclass(frozen=True)
class Network:
    """Seconds of a sum over all processes: ``latency`` and ``byte`` per byte, and per byte what a
    core does for it that would compute meanwhile, ``work``: computing beside it takes so much
    longer, and so does the sum, as both have half of the core in that time."""

    latency: float
    byte: float
    work: float = 0.0

    def seconds(self, size: int) -> float:
        """Of so many bytes."""
        return self.latency + self.byte * size if size else 0.0


def layers_for(network: Network, size: int, compute: float) -> int:
    """Layers that a step is cut to. Each takes sessions of its own; with one more to travel beside,
    less is left that travels beside nothing: in plain order the last layer's sums.

    Args:
        size: bytes of all gradients.
        compute: seconds of a step, estimated.
    """
    count = 1
    while count < MOST and network.seconds(size // count) > LITTLE * compute:
        count *= 2
    return count


@dataclass(frozen=True)
class Exchange:
    """How gradients are made and added up.

    Attributes:
        late: layers whose weight gradients come last (k of reverse first-k).
        buckets: layers whose sums travel together, in the order in which they travel.
    """

    late: int
    buckets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Simulated:
    """An exchange and what an iteration with it takes: from the start of one backward pass to the
    end of the next forward pass."""

    exchange: Exchange
    seconds: float


def simulate(times: Times, network: Network, late: int, joined: int) -> Simulated:
    """One iteration. A transfer is not interrupted; of those that wait the one whose layer the
    forward pass wants first goes first.

    Args:
        joined: layers per bucket.
    """
    run = _Run(times, network, joined)
    for kind, layer in in_turn(times.layers, late):
        chain, weight = times.backward(layer, late)
        if kind == B:
            run.compute(chain)
        elif kind == W:
            run.compute(weight)
            run.made(layer)
    run.compute(times.turn)
    for layer in range(times.layers):
        run.wait(layer)
        run.compute(times.wanted(layer))
    return Simulated(Exchange(late, tuple(run.order)), run.now)


class _Run:
    """An iteration as far as it is.

    Attributes:
        now: when what computes is done with what it was given.
        order: buckets that have left.
    """

    def __init__(self, times: Times, network: Network, joined: int) -> None:
        n = times.layers
        self._sizes, self._network = times.sizes, network
        rows = [tuple(range(k, min(k + joined, n))) for k in range(0, n, joined)]
        self._bucket = {layer: row for row in rows for layer in row}
        self._missing = {row: len(row) for row in rows}
        self._ready: dict[tuple[int, ...], float] = {}
        self._there: dict[int, float] = {}
        self.now = self._free = 0.0
        self.order: list[tuple[int, ...]] = []

    def compute(self, seconds: float) -> None:
        """So long, and longer by what transfers take of it that begin meanwhile."""
        end = self.now + seconds
        while self._ready and self._begin < end:
            end += self._leave(beside=True)
        self.now = end

    def made(self, layer: int) -> None:
        """Its gradients are."""
        row = self._bucket[layer]
        self._missing[row] -= 1
        if not self._missing[row]:
            self._ready[row] = self.now

    def wait(self, layer: int) -> None:
        """For the sums of a layer."""
        while layer not in self._there:
            self._leave()
        self.now = max(self.now, self._there[layer])

    @property
    def _begin(self) -> float:
        return max(self._free, min(self._ready.values()))

    def _leave(self, *, beside: bool = False) -> float:
        """The next bucket goes; what it takes of a core."""
        begin = self._begin
        row = min(row for row, ready in self._ready.items() if ready <= begin)
        del self._ready[row]
        size = sum(self._sizes[layer] for layer in row)
        work = self._network.work * size
        self._free = begin + self._network.seconds(size) + (work if beside else 0.0)
        self._there.update(dict.fromkeys(row, self._free))
        self.order.append(row)
        return work


@dataclass(frozen=True)
class Measured:
    """One step of a run.

    Attributes:
        times: of each process; ``turn`` is that before the step.
        sums: seconds of each bucket's sums from when all processes had asked for them, or the ones
            before were done. Those of the last step may be missing.
    """

    times: tuple[Times, ...]
    sums: Mapping[tuple[int, ...], float]


def replayed(exchange: Exchange, steps: Sequence[Measured]) -> list[float]:
    """Seconds from step to step, each process with its own times: all wait for each other's sums,
    and once more between steps.

    Args:
        steps: that followed each other; of the first its forward pass does not count.
    """
    layers, late, ends = range(steps[0].times[0].layers), exchange.late, list[float]()
    now, there = [0.0] * len(steps[0].times), dict.fromkeys(layers, 0.0)
    for step in steps:
        if ends:
            now = [ends[-1] + min(each.turn for each in step.times)] * len(now)
            for layer in layers:
                now = [max(t, there[layer]) + each.wanted(layer)
                       for t, each in zip(now, step.times, strict=True)]  # fmt: skip
        made = dict[int, float]()
        for kind, layer in in_turn(len(layers), late):
            if kind in (B, W):
                now = [t + each.backward(layer, late)[kind == W]
                       for t, each in zip(now, step.times, strict=True)]  # fmt: skip
                made[layer] = max(now)
        ends.append(max(now))
        free = 0.0
        for bucket in exchange.buckets if len(ends) < len(steps) else ():
            free = max(free, *(made[layer] for layer in bucket)) + step.sums.get(bucket, 0.0)
            there.update(dict.fromkeys(bucket, free))
    return [b - a for a, b in pairwise(ends)]


def every(times: Times, network: Network, most: int) -> Iterator[Simulated]:
    """All exchanges that are tried: k up to ``most``, layers joined by powers of two."""
    joined = 1
    while True:
        for late in range(most + 1):
            yield simulate(times, network, late, joined)
        if joined >= times.layers:
            return
        joined *= 2


def best(times: Times, network: Network, most: int) -> tuple[Simulated, Simulated]:
    """The quickest exchange, and the quickest in plain order; the same one where another order
    gains next to nothing."""
    found = list(every(times, network, most))
    plain = min((each for each in found if not each.exchange.late), key=lambda each: each.seconds)
    quickest = min(found, key=lambda each: each.seconds)
    if quickest.seconds > plain.seconds * (1 - WORTH):
        quickest = plain
    return quickest, plain


def plain_order(layers: int) -> Exchange:
    """The last layer's gradients first, each layer by itself."""
    return Exchange(0, tuple((layer,) for layer in reversed(range(layers))))


def of_parts(
    seconds: Mapping[Key, float], sizes: Sequence[int], late: Mapping[Key, float] | None = None
) -> Times:
    """Times of layers from those of their parts.

    Args:
        late: the same where all weight parts that can come last do.
    """
    rows = ([seconds.get((kind, k), 0.0) for k in range(len(sizes))] for kind in (F, B, W, U))
    forward, chain, weight, update = (tuple(row) for row in rows)
    apart = ((late.get((B, k), 0.0), late.get((W, k), 0.0)) for k in range(len(sizes)) if late)
    return Times(forward, chain, weight, tuple(sizes), update, tuple(apart))
