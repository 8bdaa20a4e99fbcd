"""Files that are made to break their reader: one message, the documented code, nothing written."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxremat
from onnxremat.cli import app
from onnxremat.cost.kept import cache_folder
from onnxremat.cost.measure import machine_key, read_cache
from onnxremat.device.files import parse_machine
from onnxremat.errors import UsageError
from onnxremat.limits import DEVICES
from onnxremat.ort.arrays import read_arrays
from onnxremat.ort.session import TUNED, Options
from onnxremat.planner.graph_files import GraphFileError, read_graph
from onnxremat.rewrite.emit import figures, unpack
from onnxremat.schedule.plan import Plan
from onnxremat.units import parse_budget
from tests.cli.conftest import Command, listing
from tests.toolbox import parse

SMALL = "g (float[8] x) => (float[8] y) { a = Sin(x)  b = Cos(a)  y = Add(a, b) }"


# Plans


def plan_data() -> dict:
    steps = [["compute", name, 0, "cpu"] for name in ("Sin_0", "Cos_1", "Add_2")]
    return {"format": "onnxremat.plan", "version": 1, "provenance": {}, "steps": steps}


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("settings", 7), ("settings", {"shapes": 7}), ("settings", {"shapes": {"x": 7}}),
        ("settings", {"shapes": {"x": ["a"]}}), ("settings", {"shapes": {"x": [-1]}}),
        ("settings", {"dims": 5}), ("settings", {"dims": {"b": 1.5}}), ("settings", {"target": 3}),
        ("settings", {"split_batch": "44"}), ("settings", {"split_batch": [True]}),
        ("settings", {"narrow": 5}), ("settings", {"narrow": [{}]}), ("settings", {"fission": 5}),
        ("settings", {"not_counted": None}),
        ("notes", [1, 2]), ("notes", 7), ("seconds", float("nan")), ("seconds", -1.0),
        ("bound", float("inf")), ("budget", True), ("budget", 2**70), ("planner", None),
        ("nobody knows", 1),
    ],
)  # fmt: skip
def test_provenance_of_a_wrong_type(where: str, value: object) -> None:
    data = plan_data()
    assert Plan.from_json(data).sequence == ("Sin_0", "Cos_1", "Add_2")
    data["provenance"] = {where: value}
    with pytest.raises(UsageError, match="damaged"):
        Plan.from_json(data)


@pytest.mark.parametrize(
    "step",
    [
        ["compute", "Sin_0", -5, "cpu"], ["compute", "Sin_0", 2**70, "cpu"], ["compute"], [], 7,
        ["compute", "Sin_0", True, "cpu"], ["compute", ["Sin_0"], 0, "cpu"], [["compute"], "a"],
        ["jump", "Sin_0"], ["compute", "Sin_0", 0, "cpu", 9], "text", None,
    ],
)  # fmt: skip
def test_steps_of_a_wrong_type(step: object) -> None:
    with pytest.raises(UsageError, match="damaged"):
        Plan.from_json({**plan_data(), "steps": [step]})


def test_plans_of_too_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxremat.schedule.plan.PLAN_RUNS", 1000)
    many = [["compute", "Sin_0", 0, "cpu"]] * 1001
    with pytest.raises(UsageError, match="too many runs of ops in the plan"):
        Plan.from_json({**plan_data(), "steps": many})
    monkeypatch.setattr("onnxremat.schedule.plan.OP_RUNS", 99)
    assert len(Plan.from_json({**plan_data(), "steps": many[:99]}).sequence) == 99
    with pytest.raises(UsageError, match="too many runs of op 'Sin_0': 100"):
        Plan.from_json({**plan_data(), "steps": many[:100]})


def test_numbers_that_nobody_means(cli: Command, folder: Path) -> None:
    onnx.save(parse(SMALL), "in.onnx")
    cli("run", "in.onnx", "--threads", 99999).assert_refused(2, "too many threads: 99999")
    cli("plan", "in.onnx", "-o", "p.json", "--threads", 99999).assert_refused(2, "too many threads")
    cli("sweep", "in.onnx", "--points", 4194304).assert_refused(2, "too many points of a curve")
    assert listing() == ["in.onnx"]


def test_plans_nested_without_end(cli: Command, folder: Path) -> None:
    Path("deep.json").write_text("[" * 200_000 + "]" * 200_000)
    onnx.save(parse(SMALL), "in.onnx")
    cli("apply", "in.onnx", "deep.json", "out.onnx").assert_refused(2, "deep.json", "nested deeper")
    with pytest.raises(GraphFileError, match="nested deeper"):
        read_graph("deep.json")
    assert listing() == ["deep.json", "in.onnx"]


def test_metadata_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import base64
    import zlib

    monkeypatch.setattr("onnxremat.rewrite.emit.PLAN_BYTES", 1 << 16)
    bomb = base64.b85encode(zlib.compress(b" " * (1 << 17))).decode()
    cut = base64.b85encode(zlib.compress(b"{}")[:-3]).decode()
    for text in (bomb, cut, "!", "", "aaaa"):
        with pytest.raises(UsageError, match="damaged"):
            unpack(text)
    assert figures({}) == {}
    for text in ("", "[]", "7", "[" * 10_000):
        with pytest.raises(UsageError, match=r"onnxremat\.facts"):
            figures({"facts": text})
    for wrong in (
        {"level": "most"}, {"threads": -1}, {"threads": "2"}, {"threads": True}, {"arena": 1},
        {"order": []}, {"nobody": 1},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="session options"):
            Options.from_json(wrong)
    with pytest.raises(UsageError, match="session options: too many threads") as refused:
        Options.from_json({"threads": 99999})
    assert "plan the model again" in refused.value.hint
    assert Options.from_json(TUNED.to_json()) == TUNED


# Arrays


def test_archives_whose_members_are_no_arrays(folder: Path) -> None:
    with zipfile.ZipFile("text.npz", "w") as archive:
        archive.writestr("x", "hello")
    with zipfile.ZipFile("huge.npz", "w") as archive:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }"
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header)
    with zipfile.ZipFile("deep.npz", "w") as archive:
        header = b"(" * 30_000
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header)
    for name in ("text.npz", "huge.npz", "deep.npz", "gone.npz"):
        with pytest.raises(UsageError, match=f"cannot read inputs from {name}"):
            read_arrays(Path(name), "inputs")


def test_archives_larger_than_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed("zeros.npz", x=np.zeros(100_000, np.float32))
    assert Path("zeros.npz").stat().st_size < 4000
    assert read_arrays(Path("zeros.npz"), "inputs")["x"].shape == (100_000,)
    monkeypatch.setattr("onnxremat.ort.arrays.memory_bytes", lambda: 300_000)
    with pytest.raises(UsageError, match="more than this machine's memory"):
        read_arrays(Path("zeros.npz"), "inputs")


# Costs


BAD_COSTS = ["NaN", "Infinity", "-Infinity", "1e300", "-1", "true", str(2**70), '"a"', "null", "[]"]


@pytest.mark.parametrize("bad", [*BAD_COSTS, "0"])
def test_costs_that_nothing_can_take_are_measured_again(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(f'{{"a": [{bad}, 0, 0], "b": [1e-6, 0, 0]}}')
    assert read_cache(path) == {"b": [1e-6, 0, 0]}
    for row in (f"[1e-6, {bad}, 0]", f"[1e-6, 0, {bad}]", f"[1e-6, 0, 0, {bad}]", bad):
        if bad != "0":
            path.write_text(f'{{"a": {row}}}')
            assert read_cache(path) == {}


def test_a_damaged_cache_does_not_stop_a_run(
    cli: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXREMAT_CACHE", str(folder / "cache"))
    path = cache_folder() / f"costs-{machine_key(1)}.json"
    path.parent.mkdir()
    path.write_text('{"a":' * 200_000)
    onnx.save(parse(SMALL), "in.onnx")
    said = cli("profile", "in.onnx", "--threads", 1)
    assert said.code == 0, said.err
    kept = json.loads(path.read_text())
    assert len(kept) == 3
    assert read_cache(path) == kept


# Machines and sizes


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 50_000, '[[device]]\nname = "a"\nflops = nan',
        '[[device]]\nname = "a"\nflops = inf', '[[device]]\nname = "a"\nthreads = 1000000',
        '[[device]]\nname = "a"\nindex = 99999999999999999999999',
        '[[device]]\nname = "a"\nmemory = 99999999999999999999999',
        f'[[device]]\nname = "a"\nmemory = "{"9" * 400}GiB"',
        "".join(f'[[device]]\nname = "d{i}"\n' for i in range(DEVICES + 1)),
        "\n".join(f"d{i};cpu;{i};1;0" for i in range(DEVICES + 1)), f"a;cpu;0;1;{'9' * 5000}",
        f"a;cpu;{10**12};1;0",
    ],
    ids=range(11),
)  # fmt: skip
def test_machine_files_with_numbers_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_machine(text)


@pytest.mark.parametrize("text", ["9" * 400, "9" * 30 + "GiB", "9" * 400 + "x", "1" * 9 + "%9"])
def test_budgets_that_no_memory_has(text: str) -> None:
    with pytest.raises(UsageError, match="budget"):
        parse_budget(text)


# Inputs that are no tensors


def _optional(shape: list[int]) -> onnx.TypeProto:
    return helper.make_optional_type_proto(helper.make_tensor_type_proto(1, shape))


@pytest.mark.parametrize("kind", ["sequence", "optional", "map"])
def test_inputs_that_are_no_tensors_and_nobody_reads(kind: str, cli: Command, folder: Path) -> None:
    number = helper.make_tensor_type_proto(1, [2])
    made = parse(
        "g (float[4, 8] x) => (float[4, 8] y) <float[8, 8] w> { y = MatMul(x, w) }".replace(
            "<float[8, 8] w>", ""
        )
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "w"))
    types = {
        "sequence": helper.make_sequence_type_proto(number),
        "optional": _optional([2]),
        "map": helper.make_map_type_proto(7, number),
    }
    made.graph.input.append(helper.make_value_info("s", types[kind]))
    onnx.save(made, "in.onnx")
    assert cli("differentiate", "in.onnx", "step.onnx").code == 0
    names = [value.name for value in onnx.load("step.onnx").graph.input]
    assert "s" not in names
    assert "x" in names
    if kind == "sequence":
        made.graph.node.append(helper.make_node("SequenceLength", ["s"], ["n"]))
        made.graph.node.append(helper.make_node("Cast", ["n"], ["f"], to=1))
        made.graph.output.append(helper.make_tensor_value_info("f", 1, []))
        onnx.save(made, "read.onnx")
        cli("differentiate", "read.onnx", "no.onnx").assert_refused(7, "'s'", "no tensor")
    if kind == "optional":
        made.graph.node[0].input[0] = "given"
        made.graph.node.insert(0, helper.make_node("OptionalGetElement", ["s"], ["given"]))
        made.graph.input[1].CopyFrom(helper.make_value_info("s", _optional([4, 8])))
        onnx.save(made, "read.onnx")
        refused = cli("differentiate", "read.onnx", "no.onnx")
        refused.assert_refused(7, "'s'", "in place of what OptionalGetElement makes")


# What people see


def test_a_mistake_of_ours_is_one_message(
    cli: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> None:
        raise KeyError("a name\nthat nobody knows")

    monkeypatch.setattr(app, "_run", wrong)
    monkeypatch.delenv("ONNXREMAT_DEBUG", raising=False)
    cli("doctor").assert_refused(1, "made a mistake", "test_hostile_files.py", "KeyError", "report")
    monkeypatch.setenv("ONNXREMAT_DEBUG", "1")
    assert "Traceback" in cli("doctor").err


def test_a_package_that_is_not_there_is_named(
    cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> None:
        raise ModuleNotFoundError("No module named 'typer'", name="typer")

    monkeypatch.setattr(app, "_run", wrong)
    cli("doctor").assert_refused(8, "'typer' is not installed for", "pip install")


def test_the_package_shows_what_it_has() -> None:
    assert {"optimize", "load", "differentiate", "verify"} <= set(dir(onnxremat))
    assert onnxremat.plan.__name__ == "plan"  # it was not to be had


def test_inspect_shows_shapes_and_the_first_of_many(cli: Command, folder: Path) -> None:
    names = [f"in{i:02d}" for i in range(40)]
    made = parse("g (float[batch, 8] x) => (float[batch, 8] y) { y = Sin(x) }")
    made.graph.input.extend(helper.make_tensor_value_info(name, 7, [2, 3]) for name in names)
    onnx.save(made, "in.onnx")
    said = cli("inspect", "in.onnx")
    assert said.code == 0
    assert "float [batch, 8]" in said.out
    assert "int64 [2, 3]" in said.out
    assert "and 29 more" in said.out
    assert max(map(len, said.out.splitlines())) < 100
    facts = cli("inspect", "in.onnx", "--json").facts
    assert facts["inputs"] == ["x", *names]
    assert facts["types"]["in39"] == "int64 [2, 3]"


def test_missing_files_come_with_those_that_are_there(cli: Command, folder: Path) -> None:
    onnx.save(parse(SMALL), "net.onnx")
    cli("inspect", "ent.onnx").assert_refused(2, "no such file", "net.onnx")
    said = cli("inspect", "\x1b[2J\x9b.onnx")  # what steers a terminal
    said.assert_refused(2, "no such file: ?[2J?.onnx")
    cli("inspect", "gone/ent.onnx").assert_refused(2, "no such file", "no folder gone")
    cli("apply", "net.onnx", "p.json", "o.onnx").assert_refused(2, "no such file", "plan IN -o")


def test_a_written_model_has_no_plan_to_write(cli: Command, folder: Path) -> None:
    onnx.save(parse(SMALL), "net.onnx")
    said = cli("plan", "net.onnx", "-b", "0.9x", "--write-model", "m.mps", "-o", "p.json")
    said.assert_refused(2, "--write-model", "p.json", "--read-solution")
    assert listing() == ["net.onnx"]


def test_a_fixed_batch_is_set_by_set_batch(cli: Command, folder: Path) -> None:
    onnx.save(parse(SMALL), "net.onnx")
    cli("max-batch", "net.onnx", "-b", "1GiB").assert_refused(2, "fixed shape", "set-batch")


def test_compare_without_any_plan_is_no_success(cli: Command, folder: Path, warm: None) -> None:
    nodes = [{"id": i, "cost_ram": 100, "cost_cpu": 1} for i in range(4)]
    links = [{"source": i, "target": j} for i in range(4) for j in range(i)][::-1]
    links = [{"source": row["target"], "target": row["source"]} for row in links]
    Path("g.json").write_text(json.dumps({"nodes": nodes, "links": links}))
    said = cli("compare", "g.json", "-b", "150", "--planner", "farthest", "--json")
    assert said.code == 3, said.err
    assert "no planner has a plan" in said.err
    assert "Traceback" not in said.err
