"""When gradients travel: the study's toy, and what a choice never does."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import cast

import pytest

from onnxremat.workers.pipeline import B, F, W
from onnxremat.workers.sums import tuning
from onnxremat.workers.sums.exchange import (
    Measured,
    Network,
    Times,
    best,
    every,
    of_parts,
    plain_order,
    replayed,
    simulate,
)
from onnxremat.workers.sums.layers import Key
from onnxremat.workers.sums.overlap import Overlapped
from tests.workers.test_data_parallel import ALONE

ONE = (1.0,) * 12
TOY = Times(ONE, (0.0, *ONE[1:]), ONE, (1,) * 12)  # nobody wants the gradient of the data


@pytest.mark.parametrize(
    ("ratio", "plain", "least", "late"), [(0.5, 37.0, 35.0, 4), (0.8, 39.4, 38.4, 3)]
)
def test_the_toy_of_the_study(ratio: float, plain: float, least: float, late: int) -> None:
    """Twelve equal layers; a layer's sum takes a share of its three parts."""
    network = Network(0.0, 3 * ratio)
    times = [simulate(TOY, network, k, 1).seconds for k in range(13)]
    assert times[0] == pytest.approx(plain)
    assert min(times) == pytest.approx(least)
    assert times.index(min(times)) == late


def test_weight_parts_that_come_last_take_what_they_took_there() -> None:
    cold = replace(TOY, apart=((0.0, 1.5), *((1.0, 1.5),) * 11))
    for late in (0, 3):
        seconds = simulate(cold, Network(0.0, 0.0), late, 1).seconds
        assert seconds == pytest.approx(TOY.compute + late * 0.5)


def test_a_network_that_is_never_done_gains_nothing() -> None:
    quickest, plain = best(TOY, Network(0.0, 3.0), 12)
    assert quickest == plain


def test_latency_makes_buckets_larger() -> None:
    alone, _ = best(TOY, Network(0.0, 0.5), 0)
    together, _ = best(TOY, Network(2.0, 0.5), 0)
    assert max(map(len, together.exchange.buckets)) > max(map(len, alone.exchange.buckets))


def test_choices_are_whole_and_never_worse_than_plain_order() -> None:
    draw = Random(0)
    for _ in range(50):
        n = draw.randint(1, 9)
        rows = [tuple(draw.uniform(0.1, 2) for _ in range(n)) for _ in range(3)]
        times = Times(rows[0], rows[1], rows[2], tuple(draw.randint(0, 5) for _ in range(n)))
        network, most = Network(draw.random(), draw.random()), draw.randint(0, n)
        quickest, plain = best(times, network, most)
        assert quickest.seconds <= plain.seconds
        assert plain.exchange.late == 0
        assert quickest.exchange.late <= most
        for found in every(times, network, most):
            layers = [layer for bucket in found.exchange.buckets for layer in bucket]
            assert sorted(layers) == list(range(n))
            assert found.seconds >= times.compute - 1e-9


class Runs:
    """A step of two equal layers; its weight gradients take ``slow`` times as long where they come
    last. The clock goes by the simulation."""

    def __init__(self, slow: float) -> None:
        self.slow, self.now, self.worked, self.crowded = slow, 0.0, 0.0, False
        self.exchange = plain_order(2)
        self.seconds: dict[Key, list[float]] = {}
        self.elapsed: dict[Key, list[float]] = {}
        self.travelled: list[tuple[int, float, bool]] = []
        self.turns: list[float] = []
        self.begun: list[float] = []
        self.sent: list[tuple[tuple[int, ...], SimpleNamespace]] = []

    def step(self) -> None:
        """One iteration."""
        late, sizes = self.exchange.late, (40, 10)
        each = {(kind, k): 1.0 for kind in (F, B, W) for k in range(2)}
        each |= {(W, k): self.slow for k in range(late)}
        for key, seconds in each.items():
            self.seconds.setdefault(key, []).append(seconds)
            self.elapsed.setdefault(key, []).append(seconds)
        self.travelled += [(size, 0.05 * size, True) for size in sizes]
        for bucket in self.exchange.buckets:
            asked = self.sent[-1][1].end if self.sent else 0.0
            end = asked + 0.05 * sum(sizes[layer] for layer in bucket)
            self.sent.append((bucket, SimpleNamespace(asked=asked, end=end)))
        self.turns.append(0.0)
        self.begun.append(self.now)
        self.now += simulate(of_parts(each, sizes), Network(0.0, 0.05), late, 1).seconds


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_another_order_stays_where_its_own_times_say_so(
    slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As measured in the trial, and as simulated again; that it was simulated to be quicker before
    is not enough."""
    runs = Runs(1.0)
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: runs.now)
    found = tuning.Tuning(cast(Overlapped, runs), ALONE, Network(0.0, 0.05), (40, 10), 2)
    while not found.done:
        runs.slow = slow if found.chosen else 1.0
        runs.step()
        found.updated()
    assert found.chosen
    assert found.again
    quickest, plain = found.chosen
    assert quickest.exchange.late
    assert quickest.seconds < plain.seconds
    assert found.again == pytest.approx([median(row) for row in found.tried])
    assert runs.exchange == (quickest if slow == 1.0 else plain).exchange


def test_processes_wait_for_the_last_one() -> None:
    """Two layers; the second process takes twice as long for the weights of the first, and the
    first for its forward pass."""
    one = Times((1.0, 1.0), (0.0, 1.0), (1.0, 1.0), (1, 1), (0.5, 0.5), turn=0.25)
    rows = replace(one, forward=(2.0, 1.0)), replace(one, weight=(2.0, 1.0), turn=0.5)
    steps = [Measured(rows, {(1,): 1.0, (0,): 4.0})] * 3
    # The second makes its last gradients at 4, and their sums come at 8; from then on the first
    # takes 2.5, 1.5 and 3, the second 1.5, 1.5 and 4.
    assert replayed(plain_order(2), steps) == pytest.approx([8 + 7 - 4] * 2)
