"""Sets of classes by dynamic programming, against all sets of small graphs."""

from __future__ import annotations

from itertools import product
from math import inf

import numpy as np
import pytest

from onnxremat.errors import InfeasibleError
from onnxremat.placement import columns, completion, dealing
from onnxremat.placement.annealing import Annealing
from onnxremat.placement.answer import Work
from onnxremat.placement.anywhere import by_class
from onnxremat.placement.classes import Classes, condense, loads
from onnxremat.placement.columns import Cover, Pricing, set_load
from onnxremat.placement.completion import assembled, priced_sets
from onnxremat.placement.dealing import Dealing
from onnxremat.placement.frontier import frontier
from onnxremat.placement.graph import Flags, Index
from onnxremat.placement.graph_files import from_json
from onnxremat.placement.methods import Ask, solve
from onnxremat.placement.parting import LoadCuts
from onnxremat.placement.program import decide
from onnxremat.placement.reduce import free_ends
from onnxremat.planner.problem import Floats
from onnxremat.planner.solvers.base import Limits
from tests.limits import LONG
from tests.placement import oracle
from tests.placement.test_latency import row


def subsets(c: Classes) -> list[Flags]:
    """All sets of supported classes."""
    return [
        flags
        for pick in product((False, True), repeat=c.count)
        if not ((flags := np.asarray(pick)) & ~c.supported).any()
    ]


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_the_best_priced_set_and_all_that_are_nearly_as_good(seed: int) -> None:
    """Loads are whole numbers and units divide them, so nothing is lost by rounding."""
    c = condense(from_json(oracle.draw(seed)), chain=False)
    rng = np.random.default_rng(seed)
    prices, most = rng.uniform(0, 1, c.count), float(rng.integers(4, 20))
    front = frontier(c)
    assert front is not None
    found = {tuple(s): float(prices[s].sum()) for s in subsets(c) if set_load(c, s) <= most}
    best = max(found.values())
    pricing = Pricing(c, front, 1e-6)
    highest, sets = pricing.best(prices, most)
    assert best - 1e-9 <= highest
    assert highest == pytest.approx(float(prices[sets[0]].sum()))
    assert set_load(c, sets[0]) <= most * (1 + 2 * c.count / pricing.units)
    listed = priced_sets(front, prices, most, 0.6 * best, Work(inf))
    assert listed is not None
    kept = {tuple(s) for s in listed if set_load(c, s) <= most}
    assert kept == {s for s, price in found.items() if price >= 0.6 * best}


def test_loads_as_they_are_prove_what_rounding_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against prices for all sets at once; with eight units a load, rounding hides a lot."""
    for module, name in ((columns, "FINEST"), (columns, "COARSEST"), (completion, "UNITS")):
        monkeypatch.setattr(module, name, 8)
    proven = hidden = 0
    for seed in range(0, 40, 2):
        c = condense(from_json(oracle.draw(seed)), chain=False)
        front = frontier(c)
        assert front is not None
        loads = [(set_load(c, inside), inside) for inside in subsets(c)]
        for most in (5.99, 8.99, 11.99):
            all_sets = columns._Duals(c, most)
            for load, inside in loads:
                if load <= most and inside.any():
                    all_sets.row(inside)
            assert all_sets.relaxation.solve(Limits(seconds=LONG))
            most_price = all_sets.value(all_sets.prices())
            if abs(most_price / max(c.graph.accelerators, 1e-9) - 1) < 1e-5:
                continue  # on the border
            can = most_price > c.graph.accelerators
            rounded = Cover(c, front, []).refutes(most, 0.1, Work(LONG))
            exact = Cover(c, front, []).refutes(most, 0.1, Work(LONG), exact=True)
            assert rounded is False or can
            assert exact == can
            proven += can
            hidden += can and not rounded
    assert proven > hidden > 0


@pytest.mark.parametrize("seed", range(1, 40, 3))
def test_least_cuts_are_least_loads(seed: int) -> None:
    c = condense(from_json(oracle.draw(seed)), chain=False)
    cuts = LoadCuts(c)
    for u in range(c.count):
        v = (u + 1) % c.count
        everything = [np.asarray(pick) for pick in product((False, True), repeat=c.count)]
        wanted = min(set_load(c, s) for s in everything if s[u] and not s[v])
        assert cuts.least([u], [v], inf) == pytest.approx(wanted, abs=1e-8)


def test_sets_are_put_together_to_a_placement_or_proven_not_to_be_one() -> None:
    data = row([2, 2, 2, 2])
    data["maxCPUs"] = 1
    c = condense(from_json(data), chain=False)
    first, last = np.asarray([1, 1, 0, 0], bool), np.asarray([0, 0, 1, 1], bool)
    done, where = assembled(c, [first, last], 5.0, Work(60.0))
    assert done
    assert where is not None
    assert where[0] == where[1] != where[2] == where[3]
    done, where = assembled(c, [first], 5.0, Work(60.0))  # a CPU takes 6 for one of the others
    assert done
    assert where is None


@pytest.mark.parametrize("seed", range(2, 40, 3))
def test_the_program_of_classes_decides_whether_there_is_a_better_placement(seed: int) -> None:
    data = oracle.draw(seed)
    c = condense(from_json(data), chain=False)
    least = oracle.least(oracle.every(data))
    if not 0 < least < inf:
        return
    assert decide(c, least, 0.0, Work(LONG))[0]
    done, where = decide(c, 1.5 * least, 0.0, Work(LONG))
    assert not done
    assert where is not None
    found = oracle.judged(data, tuple(int(d) for d in c.nodes(where)))
    assert found.fits
    assert found.load == pytest.approx(least)


def test_a_point_of_the_program_that_a_solver_lets_be_too_large_is_not_taken() -> None:
    """Three classes that belong together are 1,000 bytes of 10 ** 12 too large for a device."""
    whole = 10**12
    data = row([1, 1, 1, 1]) | {"maxFPGAs": 3, "maxCPUs": 0, "maxSizePerFPGA": whole}
    for node, size in zip(data["nodes"], (4, 4, 2, 2), strict=True):
        node["size"] = whole // size + (1000 if node is data["nodes"][0] else 0)
    for edge, cost in zip(data["edges"], (50, 50, 0.1), strict=True):
        edge["cost"] = cost
    c = condense(from_json(data), chain=False)
    _, where = decide(c, 1e4, 0.0, Work(LONG))
    assert where is None or np.bincount(where, c.size).max() <= c.graph.memory


@pytest.mark.parametrize("turned", [False, True])
def test_what_costs_nothing_goes_where_its_neighbour_can_run(turned: bool) -> None:
    """Not the other way round: the neighbour was put on an accelerator that it does not run on."""
    data = row([0, 5] if turned else [5, 0])
    data["nodes"][1 if turned else 0]["supportedOnFpga"] = 0
    c = free_ends(condense(from_json(data), chain=False))
    assert c.count == 1
    apart = [0, 2] if turned else [2, 0]  # the neighbour on a CPU
    assert by_class(c, np.asarray(apart)).tolist() == [2]


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_two_devices_are_dealt_out_as_well_as_can_be(seed: int) -> None:
    """Against every way to deal out the classes of an accelerator and another device."""
    graph = from_json(oracle.draw(seed))
    c = condense(graph, chain=False)
    search = Dealing(Annealing(c, two=False, seed=0))
    rng = np.random.default_rng(seed)
    on = [list(range(graph.devices)) if ok else list(range(graph.accelerators, graph.devices))
          for ok in c.supported]  # fmt: skip
    if not all(on):
        return
    drawn = (np.asarray([rng.choice(row) for row in on]) for _ in range(50))
    where = next((found for found in drawn if keeps(c, found)), None)
    if where is None:
        return
    begin = loads(c, where).sum(1)
    for first, second in search.pairs:
        both = np.flatnonzero((where == first) | (where == second))
        least = energy(begin, (first, second), begin.max())
        for pick in product((first, second), repeat=len(both)):
            tried = where.copy()
            tried[both] = pick
            after = loads(c, tried).sum(1)
            if all(d in on[v] for v, d in enumerate(tried)) and keeps(c, tried):
                least = min(least, energy(after, (first, second), begin.max()))
        found = search.dealt(where, (first, second), NORM, 4000)
        after = begin if found is None else loads(c, found).sum(1)
        reached = energy(after, (first, second), begin.max())
        assert found is None or set(np.flatnonzero(found != where)) <= set(both)
        assert found is None or keeps(c, found)
        assert least - 1e-9 <= reached <= energy(begin, (first, second), begin.max())
        if c.size.sum() <= graph.memory:  # bytes are looked at for the best few only
            assert reached == pytest.approx(least, abs=1e-3)


NORM = 64.0


def energy(load: Floats, pair: tuple[int, int], scale: float) -> float:
    """Infinite where one of the two has more than the largest load so far."""
    first, second = load[list(pair)] / max(scale, 1e-300)
    return float(dealing.energy(first, second, NORM)) if max(first, second) <= 1 + 1e-12 else inf


def keeps(c: Classes, where: Index) -> bool:
    """The bytes of every accelerator."""
    used = np.bincount(where, c.size, c.graph.devices)[: c.graph.accelerators]
    return bool((used <= c.graph.memory).all())


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_bytes_that_fit_together_but_cannot_be_dealt_out_are_proven_not_to_fit(
    objective: str,
) -> None:
    """Five nodes of 4 bytes on two accelerators of 10; four of 5 do fit."""
    data = row([1] * 5)
    data |= {"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 10}
    for node in data["nodes"]:
        node["size"] = 4
    ask = Ask(objective, contiguous=False)
    with pytest.raises(InfeasibleError, match="no placement keeps the limits"):
        solve(from_json(data), ask, Work(20))
    for node in data["nodes"]:
        node["size"] = 5 * (node["id"] < 4)
    assert solve(from_json(data), ask, Work(5)).where is not None


def test_a_search_ends_where_the_bound_is_within_the_gap() -> None:
    """A bound of just the value less the gap is enough, whichever way it is compared."""
    assert Work(gap=0.01).met(31.687310546875, 31.687310546875 * (1 - 0.01))
    assert not Work(gap=0.01).met(100, 98.9)
    assert Work().met(1.0, 1 - 1e-7, 1e-6)
