"""When gradients are added up over processes, and in which order they are made: by simulation.

In plain order the gradients of the first layer are made last, yet the next forward pass wants that
layer first. *Reverse first-k* (Oh et al., Out-Of-Order BackProp) makes the weight gradients of the
first k layers after everything else, the first layer first: their sums then travel in the order in
which they are wanted, while later ones are still being made and while the next forward pass runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnxremat.workers.layers import in_turn
from onnxremat.workers.pipeline import B, F, W

MOST = 8  # layers
LITTLE = 0.02  # of a step: what may be left of the exchange that nothing goes on beside
WORTH = 0.01  # of an iteration: what a change from plain order has to gain


@dataclass(frozen=True)
class Times:
    """Seconds per layer.

    Attributes:
        forward, chain, weight: of the parts of a step.
        sizes: bytes of gradients.
    """

    forward: tuple[float, ...]
    chain: tuple[float, ...]
    weight: tuple[float, ...]
    sizes: tuple[int, ...]

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.forward)

    @property
    def compute(self) -> float:
        """Seconds of a step without waiting."""
        return sum(self.forward) + sum(self.chain) + sum(self.weight)


@dataclass(frozen=True)
class Network:
    """Seconds of a sum over all processes: ``latency`` and ``byte`` per byte."""

    latency: float
    byte: float

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
    n = times.layers
    groups = [tuple(range(k, min(k + joined, n))) for k in range(0, n, joined)]
    made, now = [0.0] * n, 0.0
    for kind, layer in in_turn(n, late):
        if kind == B:
            now += times.chain[layer]
        elif kind == W:
            now += times.weight[layer]
            made[layer] = now
    ready = {group: max(made[layer] for layer in group) for group in groups}
    waiting, order, there, free = sorted(groups), list[tuple[int, ...]](), [0.0] * n, 0.0
    while waiting:
        free = max(free, min(ready[group] for group in waiting))
        group = next(group for group in waiting if ready[group] <= free)
        waiting.remove(group)
        order.append(group)
        free += network.seconds(sum(times.sizes[layer] for layer in group))
        for layer in group:
            there[layer] = free
    for layer in range(n):
        now = max(now, there[layer]) + times.forward[layer]
    return Simulated(Exchange(late, tuple(order)), now)


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


def of_parts(seconds: Mapping[tuple[int, int], float], sizes: Sequence[int]) -> Times:
    """Times of layers from those of their parts."""
    rows = ([seconds.get((kind, k), 0.0) for k in range(len(sizes))] for kind in (F, B, W))
    forward, chain, weight = (tuple(row) for row in rows)
    return Times(forward, chain, weight, tuple(sizes))
