"""Deployments written and read, exported, trained; and the cost of a boundary."""

from __future__ import annotations

import gc
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models import build
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import PROVIDERS, Device, Link, Machine
from onnxremat.errors import (
    MissingComponentError,
    ModelError,
    StoppedError,
    UnsupportedError,
    UsageError,
)
from onnxremat.execute import exported
from onnxremat.execute.annotated import load_annotated
from onnxremat.execute.deployment import Deployment, deploy, read_deployment
from onnxremat.execute.executor import Executor
from onnxremat.execute.exported import MANIFEST, export_partitions, load_partitions
from onnxremat.execute.partition_cuts import Terms
from onnxremat.grad import Settings as Training
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model, write_model
from onnxremat.memory.native import missing
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.session import DEFAULT, open_session, session_options
from onnxremat.pipeline.bench import bench, beside_devices
from onnxremat.pipeline.devices.over_devices import run_whole
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.verify import verify_deployment
from onnxremat.rewrite.annotate import NODE_KEYS
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.assign import assigned, round_robin
from onnxremat.schedule.devices import settled
from onnxremat.schedule.plan import Compute, Plan, Provenance, Transfer
from onnxremat.session.compare import compare
from tests.devices.plans import processors
from tests.limits import LONG
from tests.toolbox import graph_of, run, training_chain

MACHINE = processors(2)


def deployed(graph: Graph, stretch: int = 4, pairs: tuple[tuple[str, str], ...] = ()) -> Deployment:
    table = CostTable({op.name: 1e-4 for op in graph.ops}, {}, "given")
    plan = assigned(graph, round_robin(graph, MACHINE.names, stretch), MACHINE)
    return deploy(graph, plan, MACHINE, dict.fromkeys(MACHINE.names, table), Terms(pairs=pairs))


@pytest.fixture(scope="module")
def chain() -> Deployment:
    return deployed(training_chain(3, 16, 32))


@pytest.fixture(scope="module")
def step() -> Prepared:
    model = build("mlp", batch=8)
    return prepare(model, Settings(threads=1, train=Training()))


def test_the_written_model_is_whole_valid_and_annotated(chain: Deployment, tmp_path: Path) -> None:
    model = chain.model()
    onnx.checker.check_model(model, full_check=True)
    path = tmp_path / "out.onnx"
    write_model(model, path)
    session = open_session(path, session_options(DEFAULT))
    feeds, wanted = seeded_feeds(chain.graph), run(chain.graph).outputs
    found = dict(zip(wanted, session.run(list(wanted), feeds), strict=True))
    assert compare(found, wanted).ok
    parts = {op.name: part for part in chain.parts.partitions for op in part.graph.ops}
    for node in model.graph.node:
        facts = {entry.key: entry.value for entry in node.metadata_props}
        if node.name in parts:
            part = parts[node.name]
            assert [facts[key] for key in NODE_KEYS] == [
                part.device, str(part.index), part.device
            ]  # fmt: skip
    back = restored(model)
    assert {n.name for n in back.graph.node} == {op.name for op in chain.graph.ops}
    assert not any(e.key in NODE_KEYS for n in back.graph.node for e in n.metadata_props)


def test_a_written_deployment_is_read_back(chain: Deployment, tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    write_model(chain.model(), path)
    made = read_deployment(path)
    assert made.machine.names == chain.machine.names
    assert made.machine.links == chain.machine.links
    assert made.parts.uses == chain.parts.uses
    assert made.plan.steps == chain.plan.steps
    assert verify_deployment(made, seeded_feeds(chain.graph)).ok


def test_recomputations_live_where_they_run(tmp_path: Path) -> None:
    graph = graph_of("""g (float[8, 8] x) => (float[8, 8] y, float[8, 8] z) {
        a = Sin(x)  y = Cos(a)  z = Tanh(a)
    }""")
    a, y, z = (op.name for op in graph.ops)
    plan = Plan((Compute(a, 0, "cpu:0"), Compute(y, 0, "cpu:0"), Compute(a, 1, "cpu:1"),
                 Compute(z, 0, "cpu:1")))  # fmt: skip
    table = CostTable({op.name: 1e-4 for op in graph.ops}, {}, "given")
    made = deploy(graph, plan, MACHINE, dict.fromkeys(MACHINE.names, table))
    rows = [(p.device, [o.origin or o.name for o in p.graph.ops]) for p in made.parts.partitions]
    assert rows == [("cpu:0", [a, y]), ("cpu:1", [a, z])]
    assert not made.parts.copies
    path = tmp_path / "out.onnx"
    write_model(made.model(), path)
    assert read_deployment(path).parts.uses == made.parts.uses
    with made.executor() as executor:
        assert compare(executor.run(seeded_feeds(graph)), run(graph).outputs).bit_equal


def test_files_that_are_no_deployment_are_refused(chain: Deployment, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    write_model(to_model(chain.graph), plain)
    with pytest.raises(UsageError, match="carries no plan over several devices"):
        read_deployment(plain)
    changed = chain.model()
    node = next(node for node in changed.graph.node if node.op_type == "Tanh")
    node.op_type = "Sigmoid"
    write_model(changed, tmp_path / "changed.onnx")
    with pytest.raises(ModelError, match="was changed after it was planned"):
        read_deployment(tmp_path / "changed.onnx")
    damaged = chain.model()
    for entry in damaged.metadata_props:
        if entry.key == "onnxremat.devices":
            entry.value = entry.value[:40]
    write_model(damaged, tmp_path / "damaged.onnx")
    with pytest.raises(UsageError, match="damaged"):
        read_deployment(tmp_path / "damaged.onnx")


def test_exported_partitions_run_alike(chain: Deployment, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    files = export_partitions(chain, folder)
    assert len(files) == len(chain.parts.partitions) + 1
    for file in files[:-1]:
        onnx.checker.check_model(str(file), full_check=True)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["format"] == "onnxremat.partitions"
    assert [row.get("partition") for row in manifest["actions"] if "file" in row] == [
        part.name for part in chain.parts.partitions
    ]
    for overlap in (False, True):
        with load_partitions(folder, overlap=overlap) as executor:
            found = executor.run(seeded_feeds(chain.graph))
        assert compare(found, run(chain.graph).outputs).bit_equal
    export_partitions(chain, folder)  # again, over its own files


def test_an_export_that_fails_leaves_the_folder_as_it_was(
    chain: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, new = tmp_path / "kept", tmp_path / "new"
    before = {path: path.read_bytes() for path in export_partitions(chain, kept)}
    count = iter(range(9))

    def full(model: onnx.ModelProto, path: Path) -> list[Path]:
        if next(count) % 3 == 2:
            raise UsageError("the disk is full")
        return write_model(model, path)

    monkeypatch.setattr(exported, "write_model", full)
    for folder in (kept, new):
        with pytest.raises(UsageError, match="the disk is full"):
            export_partitions(chain, folder)
    assert {path: path.read_bytes() for path in kept.iterdir()} == before
    assert not new.exists()
    monkeypatch.undo()
    (kept / exported.UNFINISHED).mkdir()  # of a process that was killed
    assert set(export_partitions(chain, kept)) == set(kept.iterdir()) == set(before)


@pytest.mark.parametrize("at", [0, 1])
def test_an_export_that_is_interrupted_leaves_no_folder(
    at: int, chain: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after it has made its folder, or the one in it for what is not finished."""
    made, count = Path.mkdir, iter(range(9))

    def pressed(path: Path, *given: Any, **more: Any) -> None:
        made(path, *given, **more)
        if next(count) == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", pressed)
    with pytest.raises(KeyboardInterrupt):
        export_partitions(chain, tmp_path / "parts")
    assert next(count) == at + 1
    assert not list(tmp_path.iterdir())


HUGE = float("inf")  # 1e999 in a file


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("waits", [[0, 99]], "99 cannot wait for 0"),
        ("waits", [[3, 0]], "0 cannot wait for 3"),
        ("waits", [[-1, 0]], "-1 is no count"),
        ("limits", {"cpu:0": HUGE}, "inf is no count"),
        ("limits", {"cpu:9": 1}, "no device 'cpu:9'"),
        ("in_flight", HUGE, "inf is no count"),
        ("counted", {"given": {"cpu:0": HUGE}}, "inf is no count"),
        ("scratch", {"cpu:0": {"a": "b"}}, "'b' is no count"),
        ("seconds", {"99": 1.0}, "action 99 of"),
        ("seconds", {"0": float("nan")}, "takes nan s"),
        ("cuts", ["another"], "cut before 'another'"),
    ],
)
def test_numbers_that_no_plan_over_devices_has_are_refused(
    key: str, value: object, words: str, chain: Deployment, tmp_path: Path
) -> None:
    model = chain.model()
    entry = next(entry for entry in model.metadata_props if entry.key == "onnxremat.devices")
    about = {**json.loads(entry.value), key: value}
    about = about if key in ("seconds", "waits") else {**about, "seconds": {}, "waits": []}
    entry.value = json.dumps(about)
    write_model(model, tmp_path / "out.onnx")
    with pytest.raises(UsageError) as refused:
        read_deployment(tmp_path / "out.onnx")
    assert words in str(refused.value)


def test_a_manifest_that_was_changed_is_refused(chain: Deployment, tmp_path: Path) -> None:
    export_partitions(chain, tmp_path)
    plain = json.loads((tmp_path / MANIFEST).read_text())
    rows = plain["actions"]
    for key, value, words in (
        ("actions", [], "nothing makes output"),
        ("actions", [row for row in rows if "copy" not in row], "which is not on"),
        ("actions", [{**row, "outputs": {}} if "file" in row else row for row in rows], "which is"),
        ("final", {}, "nothing makes output"),
        ("final", dict.fromkeys(plain["final"], "cpu:9"), "nothing makes output"),
        ("inputs", {}, "which is not on"),
        ("state", [["a", "b"]], "'a' is no input"),
        ("waits", [[0, 99]], "99 cannot wait for 0"),
        ("limits", {"cpu:0": HUGE}, "inf is no count"),
    ):
        (tmp_path / MANIFEST).write_text(json.dumps({**plain, key: value}))
        with pytest.raises(UsageError, match="damaged") as refused:
            load_partitions(tmp_path)
        assert words in str(refused.value)


def test_partition_files_that_changed_are_refused(chain: Deployment, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    first, second, *_ = export_partitions(chain, folder)
    second.write_bytes(second.read_bytes() + b"\0")
    with pytest.raises(ModelError, match="was changed after it was exported"):
        load_partitions(folder)
    first.unlink()
    with pytest.raises(ModelError, match="is missing"):
        load_partitions(folder)
    (folder / MANIFEST).write_text("{")
    with pytest.raises(UsageError, match="not readable"):
        load_partitions(folder)
    (folder / MANIFEST).write_text('{"format": "onnxremat.partitions", "version": 1}')
    with pytest.raises(UsageError, match="damaged"):
        load_partitions(folder)
    with pytest.raises(UsageError, match="no manifest"):
        load_partitions(tmp_path)


def test_a_folder_with_other_files_is_left_alone(chain: Deployment, tmp_path: Path) -> None:
    (tmp_path / "partial.onnx").write_text("mine")
    with pytest.raises(UsageError, match="holds other files"):
        export_partitions(chain, tmp_path)
    assert (tmp_path / "partial.onnx").read_text() == "mine"
    folder = tmp_path / "parts"
    export_partitions(chain, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    for names in ({"../partial.onnx": ""}, 5):  # by whoever made the folder
        next(row for row in manifest["actions"] if "file" in row)["sha256"] = names
        (folder / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(UsageError, match=r"holds other|damaged"):
            export_partitions(chain, folder)
        assert (tmp_path / "partial.onnx").read_text() == "mine"


def test_streams_end_with_their_executor(
    chain: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed, or forgotten; one that Ctrl-C stopped in the middle runs no more: streams would be
    out of step."""
    feeds, before = seeded_feeds(chain.graph), set(threading.enumerate())
    expected = run(chain.graph).outputs
    closed = chain.executor(overlap=True)
    closed.run(feeds)
    started = set(threading.enumerate()) - before
    assert started
    closed.close()
    for thread in started:
        thread.join(LONG)
    assert compare(closed.run(feeds), expected).bit_equal
    stopped = chain.executor(overlap=True)

    def act(executor: Executor, index: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        executor.carry(index, executor._held)

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "act", act)
        with pytest.raises(KeyboardInterrupt):
            stopped.run(feeds)
    with pytest.raises(StoppedError, match="load it again"):
        stopped.run(feeds)
    left = set(threading.enumerate()) - before
    del stopped
    gc.collect()
    for thread in left:
        thread.join(LONG)
    assert set(threading.enumerate()) <= before


def test_a_provider_that_is_not_here_is_named_with_what_to_install() -> None:
    graph = graph_of("g (float[2] x) => (float[2] y) { y = Sin(x) }")
    for short, word in (("coreml", "onnxruntime"), ("directml", "onnxruntime-directml")):
        device = Device(short, PROVIDERS[short])
        machine = Machine((device,))
        table = CostTable({graph.ops[0].name: 1e-4}, {}, "given")
        plan = Plan((Compute(graph.ops[0].name, 0, short),))
        made = deploy(graph, plan, machine, {short: table})
        with pytest.raises(MissingComponentError, match=f"device '{short}'") as refused:
            made.executor()
        assert word in refused.value.hint


def test_training_steps_update_state_in_place(step: Prepared) -> None:
    """Parameters bound across partitions and devices follow one session's to the last bit."""
    made = deployed(step.graph, 5, step.in_place)
    assert {part.device for part in made.parts.partitions} == {"cpu:0", "cpu:1"}
    feeds, pairs = dict(step.feeds or {}), dict(step.in_place)
    given = {name: value for name, value in feeds.items() if name not in pairs}
    for overlap in (False, True):
        state = {name: np.array(feeds[name]) for name in pairs}
        expected = dict(feeds)
        with made.executor(state, overlap) as executor:
            for _ in range(3):
                found = executor.run(given)
                whole = run_whole(step.graph, expected, made)
                assert compare(found, {n: whole[n] for n in found}).bit_equal
                expected |= {old: whole[new] for old, new in pairs.items()}
        assert compare(state, {name: expected[name] for name in pairs}).bit_equal
        assert set(found).isdisjoint(pairs.values())
        assert not np.array_equal(state[next(iter(pairs))], feeds[next(iter(pairs))])


def test_an_update_waits_for_readers_on_other_devices() -> None:
    graph = graph_of("""g (float[32, 32] w, float[32, 32] x) => (float[32, 32] n, float[32, 32] y) {
        n = Sub(w, x)  a = Sin(x)  b = Cos(a)  y = Mul(b, w)
    }""")
    n, a, b, y = (op.name for op in graph.ops)
    plan = Plan((Compute(n, 0, "cpu:0"), Compute(a, 0, "cpu:1"), Compute(b, 0, "cpu:1"),
                 Compute(y, 0, "cpu:1")), Provenance())  # fmt: skip
    table = CostTable({op.name: 1e-4 for op in graph.ops}, {}, "given")
    made = deploy(
        graph, plan, MACHINE, dict.fromkeys(MACHINE.names, table), Terms(pairs=[("w", "n")])
    )
    feeds = seeded_feeds(graph)
    wanted = run(graph).outputs
    for _ in range(20):
        state = {"w": feeds["w"].copy()}
        with made.executor(state, overlap=True) as executor:
            assert np.array_equal(executor.run({"x": feeds["x"]})["y"], wanted["y"])
        assert np.array_equal(state["w"], wanted["n"])


def test_what_uses_an_update_moves_with_it() -> None:
    """The new value is moved and read elsewhere before the old one's last reader has run."""
    graph = graph_of("""g (float[8, 8] w, float[8, 8] x)
        => (float[8, 8] n, float[8, 8] y, float[8, 8] z) {
        n = Sub(w, x)  z = Sin(n)  a = Cos(x)  y = Mul(a, w)
    }""")
    n, z, a, y = (op.name for op in graph.ops)
    plan = Plan((Compute(n, 0, "cpu:0"), Transfer("n", "cpu:0", "cpu:1"), Compute(z, 0, "cpu:1"),
                 Compute(a, 0, "cpu:0"), Compute(y, 0, "cpu:0")))  # fmt: skip
    found = settled(graph, plan, [("w", "n")])
    runs = [step.op for step in found.steps if isinstance(step, Compute)]
    assert runs == [a, y, n, z]
    table = CostTable({op.name: 1e-4 for op in graph.ops}, {}, "given")
    made = deploy(
        graph, plan, MACHINE, dict.fromkeys(MACHINE.names, table), Terms(pairs=[("w", "n")])
    )
    feeds = seeded_feeds(graph)
    state = {"w": feeds["w"].copy()}
    with made.executor(state, overlap=True) as executor:
        found_outputs = executor.run({"x": feeds["x"]})
    wanted = run(graph).outputs
    assert compare(found_outputs, {k: wanted[k] for k in ("y", "z")}).bit_equal
    assert np.array_equal(state["w"], wanted["n"])


def test_updated_state_takes_no_second_buffer(step: Prepared) -> None:
    pairs = step.in_place
    bound = deployed(step.graph, 5, pairs).predicted
    apart = deployed(step.graph, 5).predicted
    sizes = sum(step.graph.tensors[new].bytes for _, new in pairs)
    held = sum(found.peak for found in apart.values()) - sum(f.peak for f in bound.values())
    assert 0 < held <= sizes


def test_the_worst_case_is_never_below_one_by_one(step: Prepared) -> None:
    for stretch in (1, 2, 3, 5, 8):
        made = deployed(step.graph, stretch, step.in_place)
        for name in MACHINE.names:
            assert made.worst[name] >= made.predicted[name].peak


def test_bench_sets_the_plan_beside_each_device(chain: Deployment) -> None:
    timings = bench(beside_devices(chain), seeded_feeds(chain.graph), seconds=0.1, rounds=(2, 3))
    names = [timing.name for timing in timings]
    assert names[0] == "as planned"
    assert {"cpu:0 alone", "cpu:1 alone"} <= set(names)
    assert timings[0].ratio == 1.0
    assert all(timing.seconds > 0 for timing in timings)


def test_partitions_in_a_row_are_run_by_one_thread() -> None:
    """Sixteen partitions in a row on two devices and one session of the same sixteen ops: the same
    bits, and no thread waits for another (tools/bench_boundary.py has what a boundary takes)."""
    text = " ".join(f"v{i + 1} = Sin(v{i})" for i in range(16))
    graph = graph_of(f"g (float[16] v0) => (float[16] v16) {{ {text} }}")
    machine = Machine(
        processors(2).devices, tuple(Link(a, b, 1e10, 0.0, True)
                                     for a, b in (("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")))
    )  # fmt: skip
    table = CostTable({op.name: 1e-4 for op in graph.ops}, {}, "given")
    tables = dict.fromkeys(machine.names, table)
    many = deploy(
        graph, assigned(graph, round_robin(graph, machine.names), machine), machine, tables
    )
    one = deploy(
        graph, Plan(tuple(Compute(o.name, 0, "cpu:0") for o in graph.ops)), machine, tables
    )
    assert len(many.parts.partitions) == 16
    assert not many.side_by_side  # nothing could overlap: one thread runs it all
    feeds = seeded_feeds(graph)
    with many.executor() as first, one.executor() as second:
        results = [executor.run(feeds) for executor in (first, second)]
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name])


def test_one_session_places_ops_by_their_annotations() -> None:
    graph = training_chain(2, 8, 16)
    machine = Machine((Device("main", threads=1),))
    table = {"main": CostTable({op.name: 1e-4 for op in graph.ops}, {}, "given")}
    plan = Plan(tuple(Compute(op.name, 0, "main") for op in graph.ops))
    session = load_annotated(deploy(graph, plan, machine, table))
    names = [value.name for value in session.get_outputs()]
    found = dict(zip(names, session.run(None, seeded_feeds(graph)), strict=True))
    assert compare(found, run(graph).outputs).ok


def test_two_devices_of_one_provider_are_no_single_session(chain: Deployment) -> None:
    with pytest.raises(UnsupportedError, match="one of several in one session"):
        load_annotated(chain)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_sessions_of_the_processor_hold_what_is_live(tmp_path: Path) -> None:
    """Weights come from the file without a copy of it, blocks have planned addresses, and a
    partition keeps nothing for its next run where others of its device run meanwhile."""
    graph = training_chain(4, width=160, batch=64)
    made = replace(deployed(graph, stretch=3), limits=dict.fromkeys(MACHINE.names, 1 << 40))
    path = tmp_path / "out.onnx"
    write_model(made.model(), path)
    read = read_deployment(path, mapped=True)
    assert read.file == path
    assert sum(t.ByteSize() for t in read.graph.model.graph.initializer) < 64 << 10
    feeds = seeded_feeds(graph)
    wanted = made.executor().run(feeds)
    with read.executor() as executor:
        for _ in range(3):
            assert compare(executor.run(feeds), wanted).bit_equal
        sessions = [stage.session for stage in executor.stages.values()]
        assert len(sessions) > len(MACHINE.names)
        assert {session.method for session in sessions} == {"slab"}
        assert [session._slab.counts()["slab"] for session in sessions] == [0] * len(sessions)
        assert sum(session._slab.counts()["differed"] for session in sessions) == 0
    assert str(path) not in Path("/proc/self/maps").read_text()
