"""Loading, comparing and timing."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnxremat
from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import ExhaustedError, ModelError, UnsupportedError, UsageError
from onnxremat.graph.onnx_io import to_model
from onnxremat.memory.arena import Region
from onnxremat.ort.feeds import index_range, seeded_feeds
from onnxremat.ort.profile import profile
from onnxremat.ort.session import DEFAULT, TUNED, Options, config_entries
from onnxremat.pipeline.artifact import Kind
from onnxremat.pipeline.bench import InSession, bench
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.emit import rewrite
from onnxremat.schedule.plan import Plan
from onnxremat.session.compare import compare
from onnxremat.session.load import options_beside, options_of
from onnxremat.session.measure import Running, _merged, measure
from onnxremat.session.process import PARTS
from onnxremat.session.snippets import Snippets
from tests.limits import LONG
from tests.toolbox import ONE, graph_of, parse, training_chain

F = np.float32


def test_comparing_outputs() -> None:
    a = {"y": np.asarray([1.0, np.nan, np.inf], F)}
    assert compare(a, {"y": a["y"].copy()}).bit_equal
    close = compare({"y": np.asarray([1.0, 2.0001], F)}, {"y": np.asarray([1.0, 2.0], F)})
    assert (close.bit_equal, close.ok) == (False, True)
    assert close.worst == pytest.approx(5e-5, rel=0.01)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"y": np.asarray([1.0, 3.0], F)},
        {"y": np.asarray([1.0, np.nan], F)},
        {"y": np.asarray([[1.0, 2.0]], F)},
        {"y": np.asarray([1.0, 2.0], np.float64)},
        {"y": [1.0, 2.0]},
        {"y": None},
    ],
    ids=["missing", "value", "nan", "shape", "type", "list", "none"],
)
def test_differences_are_found(found: dict) -> None:
    difference = compare(found, {"y": np.asarray([1.0, 2.0], F)})
    assert not difference.ok
    assert not difference.bit_equal
    assert difference.output == "y"


def test_infinities_have_a_sign() -> None:
    values = {"y": np.asarray([1.0, np.inf, np.nan], F)}
    for other in ([1.0, -np.inf, np.nan], [1.0, np.nan, np.inf], [1.0, np.inf, np.inf]):
        assert not compare({"y": np.asarray(other, F)}, values).ok
    assert compare({"y": np.asarray([1.0001, np.inf, np.nan], F)}, values).ok


def test_members_of_sequences_are_compared_whole() -> None:
    """Long arrays are cut short where they are printed."""
    long = np.arange(5000, dtype=F)
    wrong = long.copy()
    wrong[2500] = 7
    wanted = {"y": [np.ones(2, F), long]}
    assert compare({"y": [np.ones(2, F), long.copy()]}, wanted).bit_equal
    near = compare({"y": [np.ones(2, F), long * F(1.00001)]}, wanted)
    assert (near.ok, near.bit_equal) == (True, False)
    for found in ([np.ones(2, F), wrong], [long, np.ones(2, F)], [np.ones(2, F)], long):
        difference = compare({"y": found}, wanted)
        assert (difference.ok, difference.bit_equal, difference.output) == (False, False, "y")


def test_texts_and_maps_are_compared_by_value() -> None:
    def words(*each: str) -> np.ndarray:
        return np.array(["".join(list(word)) for word in each], object)

    assert compare({"y": words("one", "two")}, {"y": words("one", "two")}).bit_equal
    assert not compare({"y": words("one", "too")}, {"y": words("one", "two")}).ok
    assert compare({"y": [{"a": np.nan}]}, {"y": [{"a": float("nan")}]}).ok
    assert not compare({"y": [{"a": 1.0}]}, {"y": [{"a": 2.0}]}).ok


def test_numbers_in_maps_are_compared_as_those_of_tensors() -> None:
    """What ZipMap makes of probabilities, rounded otherwise in parts of a batch."""
    wanted = [{"cat": 0.25, "dog": 0.75}]
    near = compare({"y": [{"cat": 0.25 + 1e-7, "dog": 0.75}]}, {"y": wanted})
    assert (near.ok, near.bit_equal) == (True, False)
    assert 0 < near.worst < 1e-6
    far = compare({"y": [{"cat": 0.5, "dog": 0.75}]}, {"y": wanted})
    assert not far.ok
    assert far.worst == pytest.approx(1 / 3)
    others = [{"cat": 0.25}], [{"dog": 0.25, "cat": 0.75}], [{"cat": 0.25, "dog": "0.75"}]
    assert not any(compare({"y": other}, {"y": wanted}).ok for other in others)


def test_one_wrong_output_among_many_is_named() -> None:
    right = {name: np.ones(3, F) for name in "abc"}
    assert compare(right | {"b": np.zeros(3, F)}, right).output == "b"
    wrong = compare(right | {"b": np.ones(3, np.int64)}, right | {"b": np.asarray([1, 1, 2])})
    assert (wrong.ok, wrong.output) == (False, "b")


@pytest.mark.parametrize("names", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_the_output_that_is_furthest_off_is_named(names: str) -> None:
    """Not the last that is wrong, nor one that is right within a wider tolerance."""
    right = {"a": np.ones(3, F), "b": np.ones(3, F), "c": np.ones(3, np.float16)}
    near = {"b": right["b"] * F(1.01), "c": right["c"] + np.float16(0.015)}
    wanted = {name: right[name] for name in names}
    one, other = compare({"a": right["a"] * F(1.5), **near}, wanted), compare(right | near, wanted)
    assert (one.ok, one.output, one.worst) == (False, "a", 0.5)
    assert (other.ok, other.output, other.tolerance) == (False, "b", 1e-3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    graph = training_chain(3, 16, 32)
    names = [op.name for op in graph.ops]
    made = rewrite(graph, Plan.of(graph, [*names[:4], names[0], *names[4:]]))
    path = tmp_path_factory.mktemp("saved") / 'odd "name" \\ ü.onnx'
    path.write_bytes(made.model({"options": json.dumps(TUNED.to_json())}).SerializeToString())
    return path, seeded_feeds(graph)


def test_load_gives_a_ready_session(saved: tuple[Path, dict]) -> None:
    path, feeds = saved
    session = onnxremat.load(path, threads=1)
    found = session.run(None, feeds)
    wanted = profile(path, feeds, ONE).outputs
    assert [value.name for value in session.get_outputs()] == list(wanted)
    for value, other in zip(found, wanted.values(), strict=True):
        np.testing.assert_array_equal(value, other)
    onnxremat.load(path, reuse=True, arena=False)


def test_load_refuses_other_models(tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    onnx.save(parse("g (float[8] x) => (float[8] y) { y = Sin(x) }"), path)
    with pytest.raises(UsageError, match="no plan"):
        onnxremat.load(path)
    with pytest.raises(ModelError, match="no such file"):
        onnxremat.load(tmp_path / "gone.onnx")


def test_options_travel_with_the_model(saved: tuple[Path, dict], tmp_path: Path) -> None:
    assert options_of(onnx.load(saved[0])) == TUNED
    with options_beside(tmp_path / "out.onnx", TUNED, {"budget_bytes": 5}) as written:
        assert not written.exists()
    assert written.name == "out.onnx.options.json"
    data = json.loads(written.read_text())
    assert Options.from_json(data["session"]) == TUNED
    assert data["onnxruntime"]["AddSessionConfigEntry"] == config_entries(TUNED)
    assert data["plan"] == {"budget_bytes": 5}
    with pytest.raises(UsageError, match="colour"):
        Options.from_json({"colour": "red"})


@pytest.mark.parametrize("there", [False, True])
def test_a_model_is_not_written_without_its_options(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that has room for the model alone nothing changes, an older one and its options
    included."""
    made = api.optimize(
        to_model(training_chain(2, 4, 4)), budget="2x",
        settings=Settings(costs=analytic_costs, measure=False),
        options=PlanOptions(time_limit=LONG),
    )  # fmt: skip
    out = tmp_path / "out.onnx"
    if there:
        out.write_bytes(b"old")
        (tmp_path / "out.onnx.options.json").write_bytes(b"older")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("onnxremat.session.load.json.dumps", full)
    with pytest.raises(ExhaustedError, match=r"out.onnx.options.json"):
        made.save(out)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_snippets_say_all_that_load_does(saved: tuple[Path, dict]) -> None:
    code = Snippets(str(saved[0]), TUNED).by_language()
    made: dict = {}
    exec(code["Python"], made)  # also with quotes and backslashes in the name
    options = made["options"]
    assert options.enable_mem_pattern is options.enable_mem_reuse is False
    for key, value in config_entries(TUNED).items():
        assert options.get_session_config_entry(key) == value
        for text in code.values():
            assert f'("{key}", "{value}")' in text
    assert config_entries(DEFAULT) == {}
    held = Snippets(str(saved[0]), TUNED, Region(123 << 20, 64)).by_language()
    for language in ("Python", "C++"):
        for text in (str(123 << 20), "max_dead_bytes_per_chunk", "session.use_env_allocators"):
            assert text in held[language]
            assert text not in code[language]


def test_measuring_sees_another_order() -> None:
    graph = graph_of(
        "g (float[64] x) => (float[64] y) { a = Sin(x) b = Cos(x) c = Exp(x) y = Sum(a, b, c) }"
    )
    feeds = seeded_feeds(graph)
    assert measure(Running(graph), to_model(graph), feeds, ONE).order_kept
    turned = graph.with_ops([graph.ops[i] for i in (1, 0, 2, 3)])
    assert not measure(Running(turned), to_model(graph), feeds, ONE).order_kept


def test_timing_is_paired() -> None:
    graph = training_chain(2, 16, 16)
    model = to_model(graph)
    contenders = [InSession(name, model, ONE) for name in ("a", "b")]
    first, second = bench(contenders, seeded_feeds(graph), seconds=LONG, rounds=(5, 20))
    assert (first.name, first.ratio, first.spread) == ("a", 1.0, 0.0)
    assert second.name == "b"
    assert 5 <= first.rounds == second.rounds <= 20
    stopped = bench(contenders, seeded_feeds(graph), seconds=60, stop=lambda: True)
    assert stopped[0].rounds <= 2
    late = bench(contenders, seeded_feeds(graph), seconds=1e-6, rounds=(5, 20))
    assert late[0].rounds == 2  # so long over its time, it does not wait for five


# Made-up inputs


def test_seeded_inputs_are_the_same_every_time() -> None:
    graph = training_chain(2, 16, 16)
    first, again, other = (seeded_feeds(graph, seed) for seed in (1, 1, 2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
        assert not np.array_equal(value, other[name])


def test_indices_stay_in_range() -> None:
    graph = graph_of(
        """g (int64[4, 6] ids, int64[4] row, float[9, 8] table, bool[4] mask) => (y, z)
        <int64[1] s = {24}> {
        flat = Reshape(ids, s)  y = Gather(table, flat)  z = Gather<axis = 1>(table, row) }"""
    )
    assert (index_range(graph, "ids"), index_range(graph, "row")) == (9, 8)
    embedded = graph_of(
        """g (int32[2, 4] ids, int32[2, 4] kinds, int32[2, 4] places,
            float[9, 8] words, float[7, 8] positions, float[3, 8] types, float[8] w) => (y) {
        y, m = com.microsoft.EmbedLayerNormalization(
            ids, kinds, words, positions, types, w, w, , places) }"""
    )
    ranges = [index_range(embedded, name) for name in ("ids", "kinds", "places")]
    assert ranges == [9, 3, 7]
    for seed in range(20):
        feeds = seeded_feeds(graph, seed)
        assert feeds["ids"].max() < 9
        assert feeds["row"].max() < 8
        assert feeds["mask"].all()
        profile(to_model(graph), feeds, ONE)


def test_inputs_that_cannot_be_made_up_say_so() -> None:
    texts = graph_of("g (string[3] x) => (string[3] y) { y = Identity(x) }")
    with pytest.raises(UsageError, match="strings"):
        seeded_feeds(texts)


def test_a_copy_that_reads_a_copy_that_ran_was_not_joined_with_the_first_run() -> None:
    """onnxruntime moves a Transpose past a Slice that alone reads it, and names it anew."""
    graph = graph_of("""g (float[4,4] x) => (float[4,4] y) {
      a = Sin(x) t = Transpose(a) b = Sin(x) u = Transpose(b) c = Add(t, u) d = Cos(x)
      e = Cos(x) f = Add(c, d) y = Add(f, e) }""")
    first = {"b": "a", "u": "t", "e": "d"}  # by what they make
    names = {op.outputs[0]: op.name for op in graph.ops}
    ops = [replace(op, origin=names.get(first.get(op.outputs[0], ""), "")) for op in graph.ops]
    graph, ran = graph.with_ops(ops), {op.name for op in ops}
    assert _merged(graph, ran) == set()
    assert _merged(graph, ran - {names["u"]}) == set()
    assert _merged(graph, ran - {names["b"], names["u"]}) == {names["b"], names["u"]}
    assert _merged(graph, ran - {names["e"]}) == {names["e"]}


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.FLOAT8E5M2])
def test_inputs_that_numpy_does_not_have_are_told(kind: int) -> None:
    model = parse("g (float[4] x) => (float[4] y) { y = Cast<to: int = 1>(x) }", opset=21)
    model.graph.input[0].type.tensor_type.elem_type = kind
    with pytest.raises(UnsupportedError, match="input 'x' is"):
        api.optimize(model, budget="min")


def test_a_model_in_half_precision_runs_as_planned() -> None:
    """onnxruntime adds Casts to it as it opens the file; none may change the order."""
    model = parse("""g (float16[16, 32] x) => (float16[16, 5] y) {
        a = Gemm(x, w, b) c = Tanh(a) d = MatMul(c, u) e = Tanh(d) y = MatMul(e, v) }""")
    random = np.random.default_rng(0)
    for name, shape in {"w": (32, 64), "b": (64,), "u": (64, 64), "v": (64, 5)}.items():
        value = random.standard_normal(shape).astype(np.float16) / 8
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    settings = onnxremat.Settings(
        train=onnxremat.Training(loss="mse"), threads=1, costs=analytic_costs, not_counted=PARTS
    )
    result = onnxremat.optimize(
        model, budget="0.9x", settings=settings, options=onnxremat.PlanOptions(work=100, threads=1),
        bench_seconds=0,
    )  # fmt: skip
    assert all(check.ok for check in result.verified.checks if check.kind is Kind.ORDER)
