"""The imitation of onnxruntime's arena against onnxruntime, and the region found for a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

import models
from onnxremat.grad import differentiate
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.memory.arena import UNIT, Region, held, smallest_regions
from onnxremat.memory.events import Events, blocks, live_peak
from onnxremat.memory.native import missing
from onnxremat.memory.session import RegionSession, SlabSession
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import Profiling, profile
from onnxremat.ort.session import session_options
from onnxremat.session.held import open_held
from onnxremat.session.measure import executed
from onnxremat.session.region import find_region
from onnxremat.session.region_search import Opened, as_events, bytes_held, least_held, stays
from tests.memory.test_packing import runs
from tests.toolbox import ONE, training_chain

needs_slab = pytest.mark.skipif(bool(missing()), reason=missing())


def recorded(graph: Graph) -> Events:
    """What a session really asks for in a run."""
    session = open_held(to_model(graph).SerializeToString(), session_options(ONE), ONE)
    assert isinstance(session, SlabSession)
    assert session._slab.begin(None)
    found = super(SlabSession, session).run(None, seeded_feeds(graph))
    events = session._slab.recorded(session._slab.end())
    del found
    return events


@pytest.fixture(scope="module", params=["unet", "chain", "vit"])
def step(request: pytest.FixtureRequest) -> Graph:
    """A training step that is run as it is listed."""
    if request.param == "chain":
        return executed(training_chain(12), ONE)
    small = {"unet": {"batch": 1, "size": 64, "width": 8}, "vit": {"batch": 1, "layers": 2}}
    model = differentiate(models.build(request.param, **small[request.param]))
    return executed(build_graph(model), ONE)


@needs_slab
def test_holds_what_onnxruntime_holds(step: Graph) -> None:
    events = recorded(step)
    for count in (1, 3):
        found = profile(to_model(step), seeded_feeds(step), ONE, Profiling(count))
        assert held(events, runs=count) == found.arena_bytes - found.weight_bytes


@needs_slab
def test_a_profile_tells_the_events_but_for_the_order_inside_a_kernel(step: Graph) -> None:
    events = recorded(step)
    told = as_events(step, profile(to_model(step), seeded_feeds(step), ONE))
    assert live_peak(told) == pytest.approx(live_peak(events), rel=0.01)
    assert blocks(told).kept.sum() == blocks(events).kept.sum()


@needs_slab
def test_moments_of_a_batch_are_told_as_they_are_asked_for() -> None:
    """A few hundred bytes too many, and a pool of a quarter more was taken for the least."""
    model = differentiate(models.build("resnet20", batch=1, size=16))
    graph = executed(build_graph(model), ONE)
    told = as_events(graph, profile(to_model(graph), seeded_feeds(graph), ONE))
    assert told["size"].tolist() == recorded(graph)["size"].tolist()


@needs_slab
def test_onnxruntime_holds_in_the_least_arenas_what_is_simulated(
    step: Graph, tmp_path: Path
) -> None:
    events, file = recorded(step), tmp_path / "step.onnx"
    onnx.save(to_model(step), file)
    regions = smallest_regions(events)
    assert live_peak(events) <= regions[0].held <= 1.25 * live_peak(events)
    assert regions[0].held < held(events)
    opened, feeds = Opened(file.read_bytes(), file.parent, ONE), seeded_feeds(step)
    for region in regions[:3]:
        assert bytes_held(opened, feeds, region) == region.held


@needs_slab
def test_what_kernels_keep_from_opening_lies_in_the_arena() -> None:
    net = models.build("unet", batch=2, size=32, width=8, levels=2)  # with transposed convolutions
    graph = executed(build_graph(net), ONE)
    events, kept, region = recorded(graph), stays(graph), Region(33024, 1)
    opened = Opened(to_model(graph).SerializeToString(), Path(), ONE)
    told = held(events, region, runs=2, stays=kept)
    assert told == bytes_held(opened, seeded_feeds(graph), region) + sum(kept)
    assert told != held(events, region, runs=2)


def test_a_block_that_a_profile_does_not_tell_takes_no_region_of_its_own() -> None:
    """A little more in the first one holds it: a region that is added is as large again."""
    tried: list[int] = []

    def ran(region: Region) -> int:
        tried.append(region.bytes // UNIT)
        return region.bytes if region.bytes >= 1015 * UNIT else 2 * region.bytes

    least = Region(1000 * UNIT, 1, held=1000 * UNIT)
    found = least_held([least, Region(500 * UNIT, 1, held=1500 * UNIT)], ran)
    assert found == Region(1020 * UNIT, 1, held=1020 * UNIT)
    assert tried == [1000, 1010, 1020]  # the other promises more than this holds


def test_region_is_found_proved_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXREMAT_CACHE", str(tmp_path / "cache"))
    graph = executed(training_chain(12), ONE)
    file = tmp_path / "step.onnx"
    onnx.save(to_model(graph), file)
    region = find_region(file, ONE)
    assert isinstance(region, Region), region
    monkeypatch.setattr("subprocess.run", None)  # the second time nothing is searched
    assert find_region(file, ONE) == region
    session = RegionSession.opened(str(file), session_options(ONE), region)
    expected = profile(file, seeded_feeds(graph), ONE).outputs
    found = session.run(None, seeded_feeds(graph))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected.values(), strict=True))
    assert "memory: an arena of" in session.describe()
    monkeypatch.setattr("onnxremat.session.region.processor_kind", lambda: "another")
    with pytest.raises(TypeError):  # searched anew: its kernels take other workspace
        find_region(file, ONE)


@needs_slab
def test_slabs_and_regions_side_by_side() -> None:
    graph = executed(training_chain(6), ONE)
    content, feeds = to_model(graph).SerializeToString(), seeded_feeds(graph)
    expected = list(profile(to_model(graph), feeds, ONE).outputs.values())
    sessions = []
    for _ in range(2):
        sessions.append(open_held(content, session_options(ONE), ONE))
        sessions.append(RegionSession.opened(content, session_options(ONE), Region(1 << 20, 1)))
    assert [s.method for s in sessions] == ["slab", "region"] * 2
    for session in sessions * 3:
        found = session.run(None, feeds)
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@given(runs())
@settings(max_examples=40, deadline=None)
def test_an_arena_that_is_found_holds_the_live_blocks(events: Events) -> None:
    floor = live_peak(events, UNIT)
    for region in smallest_regions(events)[:2]:
        assert floor <= region.held
        again = held(events, region, runs=3)
        assert again == region.held
