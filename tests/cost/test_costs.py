"""Measured and estimated costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import models
from onnxremat.cost import kernels, measure
from onnxremat.cost.analytic import analytic_costs, flops
from onnxremat.cost.kept import cache_folder
from onnxremat.cost.kernels import kernel_costs
from onnxremat.cost.measure import Measuring, machine_key, measure_costs
from onnxremat.cost.table import KernelCosts, signatures
from onnxremat.device import host
from onnxremat.device.host import own_threads
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.profile import profile
from onnxremat.schedule.expand import expand
from tests.toolbox import ONE, graph_of, training_chain


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Little measuring, and a cache of its own."""
    monkeypatch.setattr(measure, "SECONDS", 0.1)
    monkeypatch.setenv("ONNXREMAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_measured_then_cached(quick: Path) -> None:
    graph = training_chain(3, 32, 64)
    feeds = seeded_feeds(graph)
    first, run = measure_costs(graph, feeds, threads=1)
    assert run is not None
    assert (first.source, set(first.seconds)) == ("measured", {op.name for op in graph.ops})
    assert all(seconds > 0 for seconds in first.seconds.values())
    second, run = measure_costs(graph, feeds, threads=1)
    assert run is None
    assert second.source == "cached"
    assert (second.seconds, second.scratch) == (first.seconds, first.scratch)
    again, run = measure_costs(graph, feeds, Measuring(fresh=True), threads=1)
    assert run is not None
    assert again.source == "measured"


def test_measuring_anew_forgets_nothing_else(quick: Path) -> None:
    one, other = training_chain(3, 32, 64), training_chain(3, 16, 32)
    for graph in (one, other):
        measure_costs(graph, seeded_feeds(graph), Measuring(fresh=True), threads=1)
    assert measure_costs(one, seeded_feeds(one), threads=1)[0].source == "cached"


def test_costs_depend_on_threads_but_not_on_names(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of("g (float[64, 64] x) => (float[64, 64] y) { a = MatMul(x, x) y = Sin(a) }")
    other = graph_of("g (float[64, 64] z) => (float[64, 64] q) { b = MatMul(z, z) q = Sin(b) }")
    measure_costs(graph, seeded_feeds(graph), threads=1)
    assert measure_costs(other, seeded_feeds(other), threads=1)[0].source == "cached"
    assert measure_costs(other, seeded_feeds(other), threads=2)[0].source == "measured"
    assert len(list(quick.iterdir())) == 2
    monkeypatch.setattr(measure, "processors", lambda: 1)  # as under taskset
    assert measure_costs(other, seeded_feeds(other), threads=1)[0].source == "cached"
    assert measure_costs(other, seeded_feeds(other), threads=2)[0].source == "measured"


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff\xfe", b"[1, 2]", b'"text"', b"null", b'{"a": 1}']
)
def test_a_damaged_cache_is_measured_anew(quick: Path, damage: bytes) -> None:
    graph = graph_of("g (float[8] x) => (float[8] y) { a = Sin(x) y = Cos(a) }")
    measure_costs(graph, seeded_feeds(graph), threads=1)
    (path,) = quick.iterdir()
    known = json.loads(path.read_text())
    spoilt = json.dumps({key: [row[0], "x", None] for key, row in known.items()}).encode()
    path.write_bytes(damage.replace(b'{"a": 1}', spoilt))
    assert measure_costs(graph, seeded_feeds(graph), threads=1)[0].source == "measured"
    assert len(json.loads(path.read_text())) == 2


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXREMAT_CACHE", "/proc/nowhere")
    assert cache_folder() == Path("/proc/nowhere")
    graph = graph_of("g (float[8] x) => (float[8] y) { a = Sin(x) y = Cos(a) }")
    assert measure_costs(graph, seeded_feeds(graph), threads=1)[0].source == "measured"


def test_equal_work_is_one_signature() -> None:
    graph = graph_of(
        """g (float[8, 8] x) => (float[8, 8] y) {
        a = Softmax<axis = 0>(x)  b = Softmax<axis = 0>(a)  c = Softmax<axis = 1>(b)
        d = Sin(c)  e = ReduceMax<keepdims = 1>(d)  f = Sin(e)  y = Add(f, d) }"""
    )
    keys = signatures(graph)
    a, b, c, d, _, f, _ = (keys[op.name] for op in graph.ops)
    assert a == b
    assert len({a, c, d, f}) == 4
    first = graph.ops[0].name
    again = expand(graph, [first, first, *(op.name for op in graph.ops[1:])])
    assert signatures(again)[again.ops[1].name] == a


def test_other_work_is_another_signature() -> None:
    """Of the same types, shapes and attributes: by a constant, a given input, or the version."""

    def key(text: str, opset: int = 18, given: int | None = None) -> str:
        graph = graph_of(text, opset)
        feeds = {} if given is None else {"m": np.asarray(given)}
        return list(signatures(graph, feeds).values())[-1]

    power = "g (float[8] x) => (float[8] y) <float e = {%s}> { y = Pow(x, e) }"
    assert key(power % "2.0") == key(power % "2.0") != key(power % "2.5")
    softmax = "g (float[8, 8, 8] x) => (float[8, 8, 8] y) { y = Softmax<axis = 1>(x) }"
    assert key(softmax, 11) == key(softmax, 12) != key(softmax, 13)
    loop = """g (float[8] x%s) => (float[8] y) <%s bool c = {1}> { y = Loop(m, c, x) <body =
        b (int64 i, bool k, float[8] s) => (bool l, float[8] t) { l = Identity(k) t = Sin(s) }> }"""
    assert key(loop % ("", "int64 m = {3},")) != key(loop % ("", "int64 m = {4},"))
    asked = loop % (", int64 m", "")
    assert key(asked, given=3) == key(asked, given=3) != key(asked, given=4)


def test_estimated_scratch_is_near_the_measured() -> None:
    graph = without_dead_ops(build_graph(bind(models.build("unet", size=64, width=8))))
    guess = analytic_costs(graph)
    found = profile(to_model(graph), seeded_feeds(graph), ONE)
    for kernel in found.kernels:
        if kernel.op_type == "ConvTranspose":
            assert guess.scratch[kernel.name] == pytest.approx(kernel.scratch, rel=0.25)
        else:
            assert abs(guess.scratch[kernel.name] - kernel.scratch) <= 64 << 10


def test_scratch_of_groups_and_of_choices() -> None:
    """Groups one after the other; of a Where what it takes from each side."""
    graph = graph_of(
        """g (float[2, 8, 20, 20] x, float[8, 2, 3, 3] w, bool[20, 20] c, float[8, 20, 1] y) =>
        (a, b, d) { a = ConvTranspose <group = 4> (x, w)  b = Where(c, x, y)
        z = Constant <value_float = 0.0> ()  d = Where(c, z, y) }"""
    )
    found = profile(to_model(graph), seeded_feeds(graph), ONE)
    guess = analytic_costs(graph).scratch
    kernels = [kernel for kernel in found.kernels if kernel.op_type != "Constant"]
    assert len(kernels) == 3
    for kernel in kernels:
        assert guess[kernel.name] == kernel.scratch > 0


def test_floating_point_operations() -> None:
    graph = graph_of(
        """g (float[4, 8] x, float[8, 16] w, float[2, 3, 10, 10] i, float[5, 3, 3, 3] k) =>
        (a, b, c) { a = MatMul(x, w)  b = Conv(i, k)  c = Gemm(x, w) }"""
    )
    product = 2 * 4 * 8 * 16
    assert [flops(graph, op) for op in graph.ops] == [product, 2 * 2 * 5 * 8 * 8 * 27, product]


def test_estimates_need_no_run_and_cover_every_op() -> None:
    graph = training_chain(3, 32, 64)
    table = analytic_costs(graph)
    assert table.source == "analytic"
    assert set(table.seconds) == {op.name for op in graph.ops}
    assert table.total == pytest.approx(sum(table.seconds.values()))
    by_type = {op.op_type: table.seconds[op.name] for op in graph.ops}
    assert by_type["MatMul"] >= by_type["Transpose"]


def test_what_has_no_known_sizes_is_estimated_too() -> None:
    """Of every operator whose formula reads shapes: those of NonZero's result depend on data."""
    graph = graph_of("""g (float[8, 4] x, float[2, 2] w, float[3, 2, 1] k, float[3, 2, 1] v) =>
        (y, z) {
        n = NonZero(x) t = Transpose(n) f = Cast<to: int = 1>(t)
        a = Gemm(f, w) b = MatMul(f, w) c = Einsum<equation: string = "ij,jk->ik">(f, w)
        d = Less(a, b) e = Where(d, a, c) s = Softmax<axis: int = 0>(e) y = Max(s, b, c)
        m = Cast<to: int = 1>(n) axis = Constant<value_ints: ints = [0]>()
        u = Unsqueeze(m, axis) o = Conv(u, k) q = ConvTranspose(o, v) z = LRN<size: int = 1>(q)
    }""")
    table = analytic_costs(graph)
    assert all(table.seconds[op.name] > 0 for op in graph.ops if op.op_type != "Constant")


def test_a_slice_reads_no_more_than_it_makes() -> None:
    """A row of many costs what a row costs, whatever it is taken from."""
    few, many = (
        analytic_costs(
            graph_of(
                f"""g (float[{rows}, 4096] x) => (float[1, 4096] y) {{
                    first = Constant<value_ints: ints = [0]>()
                    end = Constant<value_ints: ints = [1]>()
                    y = Slice(x, first, end)
                }}"""
            )
        )
        for rows in (2, 2000)
    )
    assert few.total == many.total


def test_costs_are_those_of_a_kind_of_processor_and_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept by how many of them the process may use, and by more than a name that others have."""
    monkeypatch.setattr(measure, "own_threads", lambda: 4)
    keys = set()
    for count in (1, 4):
        monkeypatch.setattr(measure, "processors", lambda count=count: count)
        # A session that is not told starts all four, on however few.
        assert machine_key(0) == machine_key(4) != machine_key(1)
        keys.add(machine_key(0))
    assert len(keys) == 2
    monkeypatch.setattr(host, "CPUINFO", tmp_path / "cpuinfo")
    keys = {machine_key(1)}  # nothing is there
    for family, hertz in ((25, 1), (26, 1), (26, 2)):
        rows = (f"cpu family\t: {family}", "model name\t: AMD EPYC", f"cpu MHz\t: {hertz}")
        host.CPUINFO.write_text("\n".join(rows) + "\n\nprocessor\t: 1\ncpu family\t: 1")
        keys.add(machine_key(1))
    assert len(keys) == 3


def test_threads_of_a_session_that_is_not_told() -> None:
    """It starts all but one of them, whatever this process is kept to."""
    program = (
        "import os; from pathlib import Path; import onnxruntime as ort\n"
        "from onnxremat.device.host import own_threads\n"
        "from onnxremat.ort.providers import tiny_model\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); tasks = Path('/proc/self/task')\n"
        "before = len(list(tasks.iterdir())); session = ort.InferenceSession(tiny_model())\n"
        "print(own_threads(), 1 + len(list(tasks.iterdir())) - before)"
    )
    if not Path("/proc/self/task").exists():
        pytest.skip("this system does not tell")
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert said[0] == said[1]


def test_cores_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processors each; where the system tells none, processors are what there is."""
    monkeypatch.setattr(host, "CORES", tmp_path)
    assert own_threads() == os.cpu_count()
    for at in range(6):
        folder = tmp_path / f"cpu{at}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{at % 3},{at % 3 + 3}\n")
    assert own_threads() == 3


def test_what_kernels_cost_is_measured_once(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again where the file is damaged; usual costs are no more than a fallback."""
    first = kernel_costs(1)
    assert 0 < first.call < 1e-3
    assert first.rate > 1e8
    (file,) = quick.glob("kernels-*.json")
    monkeypatch.setattr(kernels, "_measured", lambda threads: KernelCosts(1.0, float(threads)))
    assert kernel_costs(1) == first
    for text in ("{}", "[1]", json.dumps({"call": -1, "rate": 1e10})):
        file.write_text(text)
        assert kernel_costs(1) == KernelCosts(1.0, 1.0)
