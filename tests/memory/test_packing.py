"""Places in the slab: no two live blocks overlap, and no slab is below the live peak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.memory.events import EVENT, Blocks, Events, blocks, live_peak, profile
from onnxremat.memory.native import compiled_place
from onnxremat.memory.packing import (
    ALIGN,
    FEW,
    check,
    pack,
    pack_blocks,
    place,
    place_in_numpy,
    unused,
)


@st.composite
def runs(draw: st.DrawFn, most: int = 40) -> Events:
    """Events of a run: blocks asked for and given back in any order, some never."""
    rows: list[tuple[int, int]] = []
    alive: list[int] = []
    count = 0
    for _ in range(draw(st.integers(0, most))):
        if alive and draw(st.booleans()):
            rows.append((0, alive.pop(draw(st.integers(0, len(alive) - 1)))))
        else:
            rows.append((draw(st.integers(1, 1 << draw(st.integers(1, 24)))), count))
            alive.append(count)
            count += 1
    return np.array(rows, EVENT)


def overlapping(found: Blocks, offset: np.ndarray) -> list[tuple[int, int]]:
    """Pairs that live at once and share a byte, by looking at every pair."""
    return [
        (a, b)
        for a in range(len(offset))
        for b in range(a)
        if found.first[a] <= found.last[b]
        and found.first[b] <= found.last[a]
        and offset[a] < offset[b] + found.size[b]
        and offset[b] < offset[a] + found.size[a]
    ]


@given(runs())
@settings(max_examples=150, deadline=None)
def test_live_blocks_never_overlap(events: Events) -> None:
    offset, size = pack(events, rounds=6)
    found = blocks(events)
    assert overlapping(found, offset) == []
    assert size >= live_peak(events, ALIGN) >= live_peak(events)
    assert (offset % ALIGN == 0).all()
    assert size == max((offset + -(-found.size // ALIGN) * ALIGN).tolist(), default=0)


@given(runs())
@settings(max_examples=60, deadline=None)
def test_compiled_and_numpy_placement_agree(events: Events) -> None:
    if compiled_place() is None:
        pytest.skip("nothing is compiled here")
    found = blocks(events)
    order = np.argsort(-found.size, kind="stable")
    ours, theirs = place(found, order), place_in_numpy(found, order)
    assert ours[0].tolist() == theirs[0].tolist()
    assert ours[1] == theirs[1]


@given(runs(), st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_check_finds_what_looking_at_every_pair_finds(events: Events, seed: int) -> None:
    found = blocks(events)
    offset = np.random.default_rng(seed).integers(0, 1 << 20, len(found.size)) * ALIGN
    wrong = bool(overlapping(found, offset))
    if wrong:
        with pytest.raises(AssertionError, match="overlaps"):
            check(found, offset)
    else:
        check(found, offset)


def test_live_peak_counts_outputs_to_the_end() -> None:
    events = np.array([(100, 0), (50, 1), (0, 0), (30, 2), (0, 2)], EVENT)
    assert live_peak(events) == 150
    found = blocks(events)
    assert found.kept.tolist() == [False, True, False]
    assert found.last.tolist() == [1, 4, 3]


def test_packs_a_training_step_to_its_live_peak() -> None:
    """Forward blocks that the backward pass gives back in reverse: a stack, which packs exactly."""
    count = 300
    rows = [(1 << 20, slot) for slot in range(count)]
    for slot in reversed(range(count)):
        rows += [(1 << 19, 2 * count - 1 - slot), (0, slot), (0, 2 * count - 1 - slot)]
    events = np.array(rows, EVENT)
    _, size = pack(events)
    assert size == live_peak(events)


def test_what_no_block_has_is_what_the_slab_takes_more() -> None:
    chance = np.random.default_rng(3)
    size = chance.choice((2, 3, 5, 16), 100).astype(np.int64) << 20
    first = chance.integers(0, 60, 100)
    last = first + np.minimum(chance.integers(0, 40, 100), chance.integers(0, 40, 100))
    found = Blocks.of_one_stream(size, first, last, np.zeros(100, np.bool_))
    more = pack_blocks(found)[1] - int(profile(size, first, last).max())
    assert more >= FEW
    assert unused(size, first, last) == more
    assert unused(size // 64, first, last) == 0  # hardly any
    row = np.arange(50, dtype=np.int64)
    assert unused(np.full(50, 1 << 20), row, row + 1) == 0  # a chain packs
