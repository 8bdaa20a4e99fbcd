"""Planned addresses in real sessions: the same results whatever happens, and no more bytes."""

from __future__ import annotations

import gc
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxremat.memory.native import missing
from onnxremat.memory.session import TRACES, TRIES, SlabSession
from onnxremat.ort.session import TUNED, session_options
from onnxremat.session.held import open_held
from tests.toolbox import parse

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SIZE = 96  # rows and columns: 36 KiB a value, and four times that for the wide ones
BODY = f"""g (float[{SIZE},{SIZE}] x) => (float[{SIZE},{SIZE}] y, float[{4 * SIZE},{SIZE}] z) {{
    a = Relu(x)
    b = MatMul(a, x)
    c = Tanh(b)
    w = Concat<axis=0>(a, b, c, x)
    v = Exp(c)
    z = Neg(w)
    d = Add(v, a)
    y = MatMul(d, b)
}}"""


def opened(model: onnx.ModelProto) -> SlabSession:
    session = open_held(model.SerializeToString(), session_options(TUNED), TUNED)
    assert isinstance(session, SlabSession)
    return session


def plain(model: onnx.ModelProto) -> Any:
    return ort.InferenceSession(model.SerializeToString(), session_options(TUNED))


def value(seed: int, rows: int = SIZE) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((rows, SIZE)).astype(np.float32)
    return drawn * np.float32(0.1)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return parse(BODY)


@pytest.fixture(scope="module")
def expected(model: onnx.ModelProto) -> list[list[np.ndarray]]:
    session = plain(model)
    return [session.run(None, {"x": value(seed)}) for seed in range(6)]


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def counts(session: SlabSession) -> dict[str, int]:
    return session._slab.counts()


def test_replays_the_first_run(model: onnx.ModelProto, expected: list[list[np.ndarray]]) -> None:
    session = opened(model)
    assert "planned by the first run" in session.describe()
    for seed, wanted in enumerate(expected):
        assert same(session.run(None, {"x": value(seed)}), wanted)
    assert counts(session)["planned"] == len(expected) - 1
    assert counts(session)["differed"] == 0
    assert counts(session)["live"] == 0
    assert session.slab_bytes > 0
    assert session.slab_bytes <= 1.01 * max(t.live for t in session._traces.values())
    assert "5 runs as planned" in session.describe()


def test_outputs_stay_as_long_as_they_are_held(
    model: onnx.ModelProto, expected: list[list[np.ndarray]]
) -> None:
    session = opened(model)
    held = [session.run(None, {"x": value(seed)}) for seed in range(6)]
    assert all(same(a, b) for a, b in zip(held, expected, strict=True))
    del held[1], held[2]  # in another order than they came
    again = session.run(None, {"x": value(1)})
    assert same(again, expected[1])
    del session
    gc.collect()
    assert all(same(a, expected[i]) for a, i in zip(held, (0, 2, 4, 5), strict=True))
    for output in held[0]:
        output += 1  # they are the caller's to write to


def test_outputs_let_go_give_their_pages_back(
    model: onnx.ModelProto, expected: list[list[np.ndarray]]
) -> None:
    session = opened(model)
    first = session.run(None, {"x": value(0)})
    del first
    for _ in range(3):
        for seed in (1, 2):
            kept = session.run(None, {"x": value(seed)})
            assert same(kept, expected[seed])
            y = kept[0]
            del kept  # z goes, y stays until the next run is over
            assert np.array_equal(y, expected[seed][0])
    assert counts(session)["differed"] == 0


def test_nothing_is_held_between_runs_that_release(
    model: onnx.ModelProto, expected: list[list[np.ndarray]]
) -> None:
    session, held = opened(model), []
    for seed in (*range(6), *range(6)):
        found = session.run(None, {"x": value(seed)})
        session.release()
        assert counts(session)["slab"] == 0
        assert same(found, expected[seed])
        held = [*held[-1:], (seed, found)]  # outputs outlive the slab that they came from
        assert all(same(kept, expected[of]) for of, kept in held)
    assert counts(session)["planned"] == 11
    assert counts(session)["differed"] == 0


def test_small_blocks_of_the_first_run_leave_no_holes() -> None:
    """Blocks of 36 KiB, all live at once: the C library keeps no room for them behind an output
    that was made last."""
    opened(parse(BODY)).run(None, {"x": value(0)})  # what is taken once
    count = 100
    ops = "".join(f"v{k + 1} = Neg(v{k}) " for k in range(count))
    every = ", ".join(f"v{k + 1}" for k in range(count))
    text = f"(float[{SIZE},{SIZE}] v0) => (float y) {{ {ops} s = Sum({every}) t = Abs(s) "
    session = opened(parse(f"g {text} y = ReduceMax<keepdims=0>(t) }}"))
    before = data_bytes()
    kept = session.run(None, {"v0": value(0)})
    assert data_bytes() - before < count * SIZE * SIZE * 4 / 4
    assert session.slab_bytes > count * SIZE * SIZE * 4  # that much was live
    assert same(session.run(None, {"v0": value(0)}), kept)


def data_bytes() -> int:
    """Private memory that this process may write to, touched or not."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))


def test_fewer_outputs_are_another_run(
    model: onnx.ModelProto, expected: list[list[np.ndarray]]
) -> None:
    session = opened(model)
    for seed in (0, 1, 2):
        assert same(session.run(["z"], {"x": value(seed)}), expected[seed][1:])
        assert same(session.run(None, {"x": value(seed)}), expected[seed])
    assert counts(session)["planned"] == 4
    assert counts(session)["differed"] == 0


def test_every_set_of_shapes_has_its_trace() -> None:
    model = parse(f"""g (float[n,{SIZE}] x) => (float[n,{SIZE}] y) {{
        a = Relu(x)
        b = Exp(a)
        c = Tanh(b)
        y = Add(c, a)
    }}""")
    session, reference = opened(model), plain(model)
    rows = [300, 900, 30, 300, 900, 30, *range(200, 200 + TRACES + 3), 300, 300]
    for seed, count in enumerate(rows):
        feed = {"x": value(seed, count)}
        assert same(session.run(None, feed), reference.run(None, feed))
    assert len(session._traces) == TRACES
    assert counts(session)["planned"] == 4  # the second 300, 900 and 30, and the last 300
    assert counts(session)["differed"] == 0


def test_sizes_that_depend_on_data_are_right_all_the_same() -> None:
    model = parse("""g (float[200,200] x) => (float[n,2] y) {
        i = NonZero(x)
        t = Transpose(i)
        f = Cast<to=1>(t)
        y = Exp(f)
    }""")
    session, reference = opened(model), plain(model)
    draw = np.random.default_rng(0)
    for count in (20000, 20000, 7, 30000, 0, 20000, 40000, 5, 5, 5):
        x = np.zeros(40000, np.float32)
        x[draw.permutation(40000)[:count]] = 0.01
        feed = {"x": x.reshape(200, 200)}
        assert same(session.run(None, feed), reference.run(None, feed))
    assert counts(session)["differed"] > 0
    assert max(session._records.values()) <= TRIES
    assert "asked for other bytes than planned" in session.describe()
    assert counts(session)["live"] == 0


SAID = re.compile(r"(\d+) (?:runs )?(as planned|beside)")


def test_a_run_beside_another_is_said(model: onnx.ModelProto) -> None:
    session = opened(model)
    session.run(None, {"x": value(0)})
    with session._one_run:
        session.run(None, {"x": value(0)})
    assert "1 beside another run took their own" in session.describe()


def test_threads_at_once(model: onnx.ModelProto, expected: list[list[np.ndarray]]) -> None:
    session, wrong = opened(model), []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        held = []
        for turn in range(30):
            seed = (number + turn) % 6
            held.append((seed, session.run(None, {"x": value(seed)})))
            if turn % 5 == 0:
                held = held[-2:]
            wrong.extend(s for s, found in held if not same(found, expected[s]))

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert counts(session)["differed"] == 0  # a run beside another one is not mixed up with it
    assert counts(session)["live"] == 0
    told = {word: int(number) for number, word in SAID.findall(session.describe())}
    assert told["as planned"] + told.get("beside", 0) + session._records.total() == 4 * 30


def test_run_async_is_right(model: onnx.ModelProto, expected: list[list[np.ndarray]]) -> None:
    session = opened(model)
    for seed in (0, 1):
        done, results = threading.Event(), []

        def told(found: Any, _: Any, error: str, results: Any = results, done: Any = done) -> None:
            results.append((found, error))
            done.set()

        session.run_async(None, {"x": value(seed)}, told, None)
        assert same(session.run(None, {"x": value(3)}), expected[3])
        assert done.wait(60)
        assert results[0][1] == ""
        assert same(results[0][0], expected[seed])


def test_bound_and_ort_values(model: onnx.ModelProto, expected: list[list[np.ndarray]]) -> None:
    session = opened(model)
    for seed in range(3):
        given = {"x": ort.OrtValue.ortvalue_from_numpy(value(seed))}
        found = session.run_with_ort_values(None, given)
        assert same([v.numpy() for v in found], expected[seed])
    y = np.empty((SIZE, SIZE), np.float32)
    one, two = session.io_binding(), session.io_binding()
    one.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(y))
    one.bind_output("z", "cpu")
    two.bind_output("y", "cpu")
    two.bind_output("z", "cpu")
    for seed in (0, 1, 2, 3):
        for binding in (one, two):
            binding.bind_cpu_input("x", value(seed))
            session.run_with_iobinding(binding)
            assert same(binding.copy_outputs_to_cpu(), expected[seed])
        assert np.array_equal(y, expected[seed][0])
    assert counts(session)["live"] == 0


def test_sessions_close_in_any_order(
    model: onnx.ModelProto, expected: list[list[np.ndarray]]
) -> None:
    sessions = [opened(model) for _ in range(3)]
    held = [session.run(None, {"x": value(i)}) for i, session in enumerate(sessions)]
    held += [session.run(None, {"x": value(i)}) for i, session in enumerate(sessions)]
    del sessions[1]
    gc.collect()
    untouched = ort.InferenceSession(model.SerializeToString(), session_options(TUNED))
    shared = session_options(TUNED)
    shared.add_session_config_entry("session.use_env_allocators", "1")
    other = ort.InferenceSession(model.SerializeToString(), shared)
    for session in (*sessions, untouched, other):
        assert same(session.run(None, {"x": value(4)}), expected[4])
    before = [counts(session)["planned"] for session in sessions]
    other.run(None, {"x": value(4)})  # it never got one of our allocators
    assert [counts(session)["planned"] for session in sessions] == before
    sessions.clear()
    gc.collect()
    assert all(same(a, b) for a, b in zip(held, expected[:3] * 2, strict=True))


def test_a_run_that_fails_leaves_the_next_one_whole(expected: list[list[np.ndarray]]) -> None:
    model = parse(f"""g (float[{SIZE},{SIZE}] x, int64[1] i) => (float[1,{SIZE}] y) {{
        a = Exp(x)
        b = Tanh(a)
        y = Gather<axis=0>(b, i)
    }}""")
    session, x = opened(model), value(0)
    good, bad = np.array([1]), np.array([SIZE + 5])
    with pytest.raises(Exception, match="indices element out of data bounds"):
        session.run(None, {"x": x, "i": bad})
    first = session.run(None, {"x": x, "i": good})
    with pytest.raises(Exception, match="indices element out of data bounds"):
        session.run(None, {"x": x, "i": bad})
    before = counts(session)["planned"]
    assert same(session.run(None, {"x": x, "i": good}), first)
    assert counts(session)["planned"] == before + 1
    assert counts(session)["live"] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_runs(model: onnx.ModelProto, expected: list[list[np.ndarray]]) -> None:
    options = session_options(TUNED)
    options.intra_op_num_threads = 1  # a child has no other thread
    session = open_held(model.SerializeToString(), options, TUNED)
    held = [session.run(None, {"x": value(seed)}) for seed in (0, 1)]
    child = os.fork()
    if not child:
        good = all(same(session.run(None, {"x": value(s)}), expected[s]) for s in range(6))
        os._exit(0 if good and same(held[1], expected[1]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(session.run(None, {"x": value(2)}), expected[2])
    assert same(held[1], expected[1])


def test_providers_set_anew_open_another_slab(
    model: onnx.ModelProto, expected: list[list[np.ndarray]]
) -> None:
    session = opened(model)
    kept = session.run(None, {"x": value(0)})
    session.set_providers(["CPUExecutionProvider"])
    for seed in (1, 2):
        assert same(session.run(None, {"x": value(seed)}), expected[seed])
    assert same(kept, expected[0])


def test_no_compiled_allocator_is_said(
    model: onnx.ModelProto, expected: list[list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxremat.session.held.missing", lambda: "nothing was compiled")
    session = open_held(model.SerializeToString(), session_options(TUNED), TUNED)
    assert session.method == "arena"
    assert "nothing was compiled" in session.describe()
    assert same(session.run(None, {"x": value(0)}), expected[0])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc here")
def test_lent_pages_are_not_mapped_twice(model: onnx.ModelProto) -> None:
    """In a limit on data, places of outputs that are held do not count beside the outputs."""

    def data() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) * 1024

    wide = parse("""g (float[1024,1024] x) => (float[1024,1024] y) {
        a = Exp(x)
        b = Neg(a)
        y = Tanh(b)
    }""")
    session = opened(wide)
    x = np.zeros((1024, 1024), np.float32)
    for _ in range(2):
        session.run(None, {"x": x})
    before = data()
    y = session.run(None, {"x": x})
    assert data() - before < 1 << 20
    del y
    assert data() - before < 1 << 20
