"""Small random graphs, every placement tried: the package finds and proves the least of them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest

from onnxremat.errors import InfeasibleError
from onnxremat.placement import anywhere, contiguous, released, two_maxima
from onnxremat.placement import chains as chains_module
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.balance import balance, within_memory
from onnxremat.placement.classes import condense, loads
from onnxremat.placement.graph_files import from_json
from onnxremat.placement.judge import judge, judge_placement
from onnxremat.placement.methods import TWO_MAXIMA, Ask, solve
from onnxremat.placement.spine import spine_bound
from tests.limits import LONG
from tests.placement import oracle

SEEDS = range(120)
CHAIN = Ask()


@cache
def tried(seed: int) -> tuple[dict[str, Any], list[tuple[oracle.Where, oracle.Found]]]:
    data = oracle.draw(seed)
    return data, oracle.every(data)


def answer_of(seed: int, ask: Ask = CHAIN, seconds: float = LONG) -> Answer | None:
    """None where it is refused as infeasible."""
    try:
        return solve(from_json(tried(seed)[0]), ask, Work(seconds))
    except InfeasibleError:
        return None


def test_the_chain_of_ideals_is_the_least_contiguous_placement() -> None:
    """Where a colour has backward nodes only, the order that it gets makes some chains impossible;
    elsewhere the values are equal."""
    equal = 0
    for seed in SEEDS:
        data, found = tried(seed)
        wanted, answer = oracle.least(found, "chain"), answer_of(seed)
        value = answer.value if answer else inf
        if oracle.has_orphans(data):
            assert value >= wanted - 1e-9
        else:
            assert value == pytest.approx(wanted, abs=1e-9), seed
            equal += 1
        if answer:
            assert answer.status == "optimal"
    assert equal > 80


def test_a_proof_of_fewer_chains_says_so() -> None:
    """The judge takes a chain that is not among those where a colour has backward nodes only."""
    for two in (False, True):
        data = oracle.draw(6209)
        answer = solve(from_json(data), Ask(TWO_MAXIMA) if two else CHAIN, Work(LONG))
        assert answer.bound > oracle.least(oracle.every(data), "chain", two=two)
        assert "turned round" in " ".join(answer.notes)
    beside = solve(from_json(oracle.draw(0)), CHAIN, Work(LONG))
    assert not beside.notes


def test_bytes_of_what_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains without these bytes are tried first: what they prove holds where they fit, and where
    they do not the least one is found all the same."""
    seen: list[bool] = []
    fits = contiguous._fits

    def noted(*given: Any) -> bool:
        seen.append(fits(*given))
        return seen[-1]

    monkeypatch.setattr(contiguous, "_fits", noted)
    monkeypatch.setattr(
        contiguous, "_first", lambda *given: None
    )  # these are small: it is the best
    for seed in range(60):
        data = oracle.draw(seed)
        if oracle.has_orphans(data):
            continue
        for node in data["nodes"][::2]:
            node |= {"fpgaLatency": 0, "cpuLatency": 0, "size": node["size"] + 2}
        wanted = oracle.least(oracle.every(data), "chain")
        try:
            answer = solve(from_json(data), CHAIN, Work(LONG))
        except InfeasibleError:
            assert wanted == inf
            continue
        assert answer.status == "optimal"
        assert answer.value == pytest.approx(wanted, abs=1e-9), seed
    assert {True, False} == set(seen)


def test_balance_within_memory_is_a_bound() -> None:
    """Never above the least of all placements; above plain balance where bytes are short."""
    above = 0
    for seed in SEEDS:
        data, found = tried(seed)
        wanted = oracle.least(found)
        if wanted == inf:
            continue
        graph = from_json(data)
        c = condense(graph, chain=False)
        plain = balance(c.load, c.slow, c.supported, graph.accelerators, graph.cpus).bound
        bound = within_memory(c)
        assert bound <= wanted + 1e-9, seed
        assert not bound or bound >= plain - 1e-6, seed
        above += bound > plain * 1.01
    assert above > 3
    for seed, memory in ((93, 4), (285, 6)):  # prices that rounding leaves a little too high
        graph = from_json(oracle.draw(seed)).with_limits(memory=memory)
        assert within_memory(condense(graph, chain=False)) > 11


def test_cuts_of_a_path_are_a_bound_of_chains() -> None:
    """Never above the least chain, often above balance; a small value is not passed."""
    above = met = 0
    for seed in SEEDS:
        answer = answer_of(seed)
        if answer is None:
            continue
        graph = from_json(tried(seed)[0])
        c = condense(graph, chain=True)
        floor = balance(c.load, c.slow, c.supported, graph.accelerators, graph.cpus).bound
        found = spine_bound(c, 2 * answer.value + 1)
        assert min(floor, answer.value) - 1e-9 <= found <= answer.value * (1 + 1e-9) + 1e-9, seed
        assert spine_bound(c, answer.value / 2) <= answer.value / 2
        above += found > floor * 1.01
        met += found > 0.999 * answer.value
    assert above > 40
    assert met > 20


def test_a_bound_where_ideals_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel chains between two classes, all of which but one hold nearly nothing."""
    many = 4
    times = [4.0, *[0.01] * 3 * many, 2.0, 2.0, 2.0, 4.0]
    last = len(times) - 1
    heavy = list(range(last - 3, last))
    chains = [list(range(1 + 3 * i, 4 + 3 * i)) for i in range(many)] + [heavy]
    edges = [pair for row in chains for pair in pairwise([0, *row, last])]
    data = {
        "maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 1e9,
        "nodes": [
            {"id": v, "supportedOnFpga": 1, "fpgaLatency": time, "cpuLatency": time,
             "isBackwardNode": 0} for v, time in enumerate(times)
        ],
        "edges": [{"sourceId": u, "destId": v, "cost": 0.5} for u, v in edges],
    }  # fmt: skip
    graph = from_json(data)
    exact = solve(graph, CHAIN, Work(LONG))
    assert exact.status == "optimal"
    monkeypatch.setattr(chains_module, "all_ideals", lambda c, work, most: None)
    found = solve(graph, CHAIN, Work(LONG, gap=0.2))
    assert found.bound_by == "balance and cuts of a path"
    assert sum(times) / 2 < found.bound <= exact.value <= found.value


def test_two_maxima_along_chains() -> None:
    for seed in SEEDS:
        data, found = tried(seed)
        if oracle.has_orphans(data):
            continue
        answer = answer_of(seed, Ask(TWO_MAXIMA))
        wanted = oracle.least(found, "chain", two=True)
        assert (answer.value if answer else inf) == pytest.approx(wanted, abs=1e-9), seed
        assert answer is None or answer.status == "optimal"


@pytest.mark.parametrize("two", [False, True])
def test_placements_of_any_shape_and_their_bounds(two: bool) -> None:
    """The bound is never above the least of all placements, and what is found is nearly always
    that least, and mostly proven where that is the max-load."""
    met = found_least = answered = 0
    for seed in SEEDS[::3]:
        data, found = tried(seed)
        graph, wanted = from_json(data), oracle.least(found, two=two)
        try:
            search = anywhere.begin(graph, Work(LONG))
        except InfeasibleError:
            assert wanted == inf
            continue
        if search is None:
            continue
        search.step(9)
        if two and graph.training:
            search = two_maxima.begin(graph, search.answer(), Work(LONG))
            search.step(9)
        answer = search.answer()
        assert answer.bound <= wanted + 1e-9, seed
        assert answer.value >= wanted - 1e-9, seed
        second = oracle.judged(data, tuple(answer.where.tolist()))
        assert second.fits
        assert (second.two if two else second.load) == pytest.approx(answer.value, abs=1e-9)
        answered += 1
        met += answer.status == "optimal"
        found_least += answer.value <= wanted + 1e-9
    assert answered > 20
    assert found_least > 0.9 * answered
    assert met > (0.5 if two else 0.7) * answered


def test_two_maxima_of_any_shape_begin_from_the_best_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the least of all in its place, a search that ends at once is as good as that."""
    begun = 0
    for seed in SEEDS[::10]:
        data, found = tried(seed)
        graph = from_json(data)
        fitting = [(second.two, where) for where, second in found if second.fits]
        if not graph.training or not fitting:
            continue
        least, where = min(fitting)
        monkeypatch.setattr(two_maxima, "_chained", lambda _, __, at=where: np.asarray(at))
        answer = two_maxima.anywhere(graph, Work(LONG, gap=1.0))
        assert answer.value == pytest.approx(least, abs=1e-9), seed
        begun += 1
    assert begun > 3


def test_answers_keep_all_rules_and_cost_what_they_say() -> None:
    for seed in SEEDS:
        answer = answer_of(seed)
        if answer is None:
            continue
        data, _ = tried(seed)
        graph = from_json(data)
        verdict = judge(graph, answer.split(graph))
        assert not verdict.broken(contiguous=True), seed
        assert verdict.max_load == pytest.approx(answer.value, abs=1e-9)
        second = oracle.judged(data, tuple(answer.where.tolist()))
        assert second.load == pytest.approx(answer.value, abs=1e-9)
        assert second.fits
        assert second.convex
        assert second.chain


def test_judges_agree_on_every_placement() -> None:
    """Node by node in the package, by nets for its solvers, and the oracle's."""
    for seed in SEEDS:
        data, found = tried(seed)
        graph = from_json(data)
        c = condense(graph, chain=False)
        rng = np.random.default_rng(seed)
        for pick in rng.choice(len(found), min(4, len(found)), replace=False):
            where, second = found[pick]
            verdict = judge_placement(graph, where)
            assert verdict.max_load == pytest.approx(second.load)
            assert verdict.two_maxima == pytest.approx(second.two)
            assert (not verdict.broken(contiguous=False)) == second.fits
            assert (not verdict.breaks("contiguous")) == second.convex
            assert (not verdict.breaks("one order of devices")) == second.chain
            by_class = np.zeros(c.count, np.int64)
            by_class[c.of] = where
            parts = loads(c, by_class)
            assert parts.sum(1).max() == pytest.approx(second.load)
            assert parts.max(0).sum() == pytest.approx(second.two)


@pytest.mark.parametrize("rule", ["convex", ""])
def test_the_released_programs_find_the_least_of_their_rule(rule: str) -> None:
    """Also of graphs with classes of backward nodes only, which are free in them."""
    for seed in SEEDS[::12]:
        data, found = tried(seed)
        two = bool(seed % 24)
        wanted = oracle.least(found, rule, two=two)
        try:
            answer = released.solve(from_json(data), Work(LONG), contiguous=bool(rule), two=two)
        except InfeasibleError:
            assert wanted == inf
            continue
        assert answer.value == pytest.approx(wanted, abs=1e-6), seed
        assert answer.status == "optimal"


def circle() -> dict[str, Any]:
    """Chains 1 -> 2 and 3 -> 4: {1, 4} and {2, 3} are convex, and wait for each other."""
    times, sizes = {1: 3, 2: 3, 3: 1, 4: 1}, {1: 300, 2: 200, 3: 300, 4: 200}
    return {
        "maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 500,
        "nodes": [
            {"id": v, "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": times[v],
             "isBackwardNode": 0, "size": sizes[v]}
            for v in (1, 2, 3, 4)
        ],
        "edges": [{"sourceId": 1, "destId": 2, "cost": 0}, {"sourceId": 3, "destId": 4, "cost": 0}],
    }  # fmt: skip


def test_convex_devices_may_wait_for_each_other() -> None:
    """The released integer program allows 4, no chain of devices takes less than 6."""
    graph = from_json(circle())
    answer = solve(graph, CHAIN, Work(LONG))
    assert (answer.value, answer.status) == (6, "optimal")
    assert oracle.least(oracle.every(circle()), "convex") == 4
    verdict = judge_placement(graph, [0, 1, 1, 0])
    assert verdict.max_load == 4
    assert [finding.rule for finding in verdict.findings] == ["one order of devices"]
    assert "ip.py" in verdict.findings[0].passes
