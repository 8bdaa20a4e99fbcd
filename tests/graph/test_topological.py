"""The one topological sort against the definition, and what each way of picking takes next."""

from random import Random

import pytest

from onnxremat.graph.topological import as_left, first_come, last_come, least_first, picked, turned

# 0 and 1 are ready; 2 after 0, 3 after 1, 4 after 2 and 3.
DIAMONDS = [[], [], [0], [1], [2, 3]]


def test_each_way_picks_as_it_says() -> None:
    assert first_come(DIAMONDS) == [0, 1, 2, 3, 4]
    assert last_come(DIAMONDS) == [1, 3, 0, 2, 4]
    assert least_first(DIAMONDS) == [0, 1, 2, 3, 4]
    assert least_first(DIAMONDS, [0, 9, 0, 0, 0]) == [0, 2, 1, 3, 4]
    assert as_left(DIAMONDS, [4]) == [1, 3, 0, 2, 4]
    assert picked(DIAMONDS, turned(DIAMONDS), lambda ready: 0) == first_come(DIAMONDS)


@pytest.mark.parametrize("seed", range(8))
def test_orders_of_random_graphs_keep_every_edge(seed: int) -> None:
    draw = Random(seed)
    names = draw.sample(range(40), 40)
    before: list[list[int]] = [[] for _ in names]
    for at in range(1, 40):
        for _ in range(draw.randrange(3)):  # edges may be there twice
            before[names[at]].append(names[draw.randrange(at)])
    rank = [draw.random() for _ in names]
    walk = as_left(before, range(40))
    for order in (first_come(before), last_come(before), least_first(before, rank), walk):
        place = {node: at for at, node in enumerate(order)}
        assert sorted(order) == list(range(40))
        assert all(place[u] < place[v] for v, row in enumerate(before) for u in row)


def test_a_circle_and_what_follows_it_are_left_out() -> None:
    before = [[], [0, 2], [1], [2], [0]]
    assert [sorted(way(before)) for way in (first_come, last_come, least_first)] == [[0, 4]] * 3
