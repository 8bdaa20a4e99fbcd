"""Least cuts against all cuts."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.graph.least_cut import ENDLESS, Network

VERTICES = 5
arcs = st.lists(
    st.tuples(
        st.integers(-1, VERTICES), st.integers(-1, VERTICES), st.integers(0, 9) | st.just(ENDLESS)
    ),
    max_size=16,
)


@given(arcs)
@settings(max_examples=200, deadline=None)
def test_no_cut_costs_less(drawn: list[tuple[int, int, int]]) -> None:
    """-1 is the near end, VERTICES the far one."""
    net = Network()
    ends = {-1: net.near, VERTICES: net.far}
    real = [
        (a, b, cost) for a, b, cost in drawn if not (cost == ENDLESS and (a, b) == (-1, VERTICES))
    ]
    for a, b, cost in real:
        net.arc(ends.get(a, a), ends.get(b, b), cost)

    def price(near: set[int]) -> int:
        inside = near | {-1}
        return sum(cost for a, b, cost in real if a in inside and b not in inside and a != b)

    sides = [
        {v for v in range(VERTICES) if side[v]} for side in product((False, True), repeat=VERTICES)
    ]
    least = min(map(price, sides))
    found = {v for v in net.near_side() if isinstance(v, int)}
    assert price(found) == least or least >= ENDLESS
    if least < ENDLESS:
        assert len(found) == min(len(side) for side in sides if price(side) == least)
