"""Planned for throughput: placements over alike devices, within budgets, written and read."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from models import build
from onnxremat.cost.table import CostTable
from onnxremat.device.files import read_machine
from onnxremat.device.machine import PROVIDERS, Device, Link, Machine
from onnxremat.errors import InfeasibleError, NoPlanError, UnsupportedError, UsageError
from onnxremat.execute.deployment import Deployment, read_deployment
from onnxremat.execute.exported import MANIFEST, export_partitions
from onnxremat.execute.in_flight import places
from onnxremat.execute.inside import insides
from onnxremat.grad import Settings as Training
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.providers import missing
from onnxremat.pipeline.devices import pipelined, stage_cuts, stage_remakes, throughput
from onnxremat.pipeline.devices.device_plan import device_model
from onnxremat.pipeline.devices.device_ways import Trials
from onnxremat.pipeline.devices.over_devices import run_whole
from onnxremat.pipeline.devices.pipelined import Pipelined
from onnxremat.pipeline.devices.placement_bridge import bridge, kinds
from onnxremat.pipeline.devices.several_devices import SeveralDevices
from onnxremat.pipeline.devices.site import Site
from onnxremat.pipeline.devices.stage_cuts import along_order
from onnxremat.pipeline.devices.stage_remakes import Remakes
from onnxremat.pipeline.devices.throughput import corrected
from onnxremat.pipeline.optimize import Request, optimize
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.result import Result
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.verify import verify_deployment
from onnxremat.placement.from_problem import UNIT
from onnxremat.placement.graph_files import from_json, to_json
from onnxremat.placement.judge import judge_placement
from onnxremat.schedule.plan import Compute
from tests.devices.plans import ANY, BESIDE, priced, processors
from tests.toolbox import parse

WHY = missing(Device("openvino", PROVIDERS["openvino"]))


@pytest.fixture(autouse=True)
def _as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials end after the fewest samples, and correct nothing."""
    monkeypatch.setattr(pipelined, "SECONDS", 0.0)
    monkeypatch.setattr(throughput, "TRIALS", 1)


@pytest.fixture(scope="module")
def chain() -> Prepared:
    model = build("mlp", batch=64, features=16, width=32, layers=6)
    return prepare(model, Settings(threads=1, target="none", not_counted=BESIDE))


@pytest.fixture(scope="module")
def lenet() -> Prepared:
    return prepare(build("lenet", batch=2), Settings(threads=1, target="none", not_counted=BESIDE))


def planned(prepared: Prepared, machine: Machine, budget: str = "", **more: Any) -> Result:
    """A chain, a device per stage, unless something else is asked for."""
    costs = more.pop("costs", partial(priced, machine=machine))
    more = {"objective": "throughput", "replicas": 1, "contiguous": True, **more}
    options = more.pop("options", ANY)
    request = Request(budget, machine, options, costs=costs, bench_seconds=0, **more)
    return optimize(prepared, request)


def best_cut(prepared: Prepared, machine: Machine) -> float:
    """Least largest load of two alike devices over all ideals, which of a chain are its
    beginnings, in milliseconds; every cut tried, by the definition."""
    tables = priced(prepared, machine)
    model = device_model(prepared.graph, Site(machine), tables)
    graph = bridge(model, tables, {}).graph
    values = []
    for cut in range(graph.count + 1):
        where = [int(node >= cut) for node in range(graph.count)]
        if all(where[u] <= where[v] for u, v in zip(graph.tail, graph.head, strict=True)):
            values.append(judge_placement(graph, where).max_load)
    return min(values)


def test_the_best_cut_of_a_model_is_found_run_and_written(lenet: Prepared, tmp_path: Path) -> None:
    machine = processors(2)
    result = planned(lenet, machine)
    facts = result.facts()
    assert all(check.ok for check in result.checks), result.checks
    assert any("4 in flight, in order" in check.name for check in result.checks)
    assert facts["objective"] == "throughput"
    assert facts["in_flight"] == 4
    assert facts["status"] == "optimal"
    assert [row["partitions"] for row in facts["devices"]] == [1, 1]
    assert facts["bound_seconds"] <= max(facts["loads_of_costs_seconds"].values())
    path = tmp_path / "out.onnx"
    result.save(path)
    made = read_deployment(path)
    assert made.in_flight == 4
    found = verify_deployment(made, lenet.feeds)
    assert found.ok, found.checks
    assert set(found.figures()["peak_seen_bytes"]) == set(machine.names)
    given = [seeded_feeds(made.graph, seed) for seed in range(3)]
    with made.pipeline() as pipeline:
        for feeds, outputs in zip(given, pipeline.map(given), strict=True):
            whole = run_whole(made.graph, feeds, made)
            assert all(np.array_equal(outputs[name], whole[name]) for name in whole)


def test_no_cut_has_less_load(lenet: Prepared) -> None:
    machine = processors(2)
    facts = planned(lenet, machine).facts()
    assert facts["max_load_seconds"] == pytest.approx(best_cut(lenet, machine) * UNIT)
    assert facts["bound_seconds"] == pytest.approx(facts["max_load_seconds"])


@pytest.fixture(scope="module")
def thirds() -> Prepared:
    """Products of a quarter, a half and a quarter of the time: no chain of two devices has less
    load than three quarters."""
    text = "a = MatMul(x, w0) b = MatMul(a, w1) y = MatMul(b, w2)"
    model = parse(f"g (float[64, 256] x) => (float[64, 256] y) {{ {text} }}")
    draw = np.random.default_rng(0)
    for number, shape in enumerate([(256, 512), (512, 512), (512, 256)]):
        weight = (draw.normal(size=shape) / 20).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{number}"))
    return prepare(model, Settings(threads=1, target="none", not_counted=BESIDE))


def test_samples_come_back_where_that_is_quicker(thirds: Prepared, tmp_path: Path) -> None:
    machine = processors(2)
    chain = planned(thirds, machine).facts()
    assert chain["rounds"] is None
    assert "any chain of devices" in chain["bound_kind"]
    whole = sum(priced(thirds, machine)["cpu:0"].seconds.values())
    assert chain["max_load_seconds"] == pytest.approx(whole * 3 / 4, rel=0.05)
    result = planned(thirds, machine, contiguous=False)
    facts = result.facts()
    assert all(check.ok for check in result.checks), result.checks
    (first,), (second,), (third,) = facts["stages"]
    assert first == third != second
    assert "any placement" in facts["bound_kind"]
    assert whole / 2 <= facts["bound_seconds"] * (1 + 1e-9) <= facts["max_load_seconds"]
    assert facts["max_load_seconds"] == pytest.approx(whole / 2, rel=0.05)
    assert facts["rounds"]["stages_and_lags"][first] == [(0, 0), (2, 1)]
    assert facts["rounds"]["period_seconds"] < 0.8 * chain["max_load_seconds"]
    path = tmp_path / "out.onnx"
    result.save(path)
    made = read_deployment(path)
    found = verify_deployment(made, thirds.feeds)
    assert found.ok, found.checks
    assert {row["device"]: row["peak_worst_case_bytes"] for row in facts["devices"]} == made_worst(
        made
    )
    export_partitions(made, tmp_path / "parts")
    told = json.loads((tmp_path / "parts" / MANIFEST).read_text())["pipeline"]
    assert [(row["devices"], row["behind"]) for row in told["stages"]] == [
        ([first], 0), ([second], 0), ([first], 1)
    ]  # fmt: skip
    most = max(row["peak_worst_case_bytes"] for row in facts["devices"])
    fewer = planned(thirds, machine, budget=str(most - 1), contiguous=False).facts()
    assert fewer["in_flight"] < facts["in_flight"]
    assert all(row["peak_measured_bytes"] < most for row in fewer["devices"])


def made_worst(made: Deployment) -> dict[str, int]:
    inside = insides(made.parts, made.machine, made.scratch)
    rounds = made.rounds(made.in_flight)
    return places(made.parts, made.machine, inside, rounds).most(made.in_flight)


@pytest.mark.skipif(bool(WHY), reason=WHY)
def test_ops_that_only_one_device_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between products for OpenVINO are ops for the processor alone: the best chain, of 7 ms,
    leaves one of the products to the processor. Run on both."""
    text = "a = MatMul(x, w0) b = Erf(a) c = MatMul(b, w1) y = Softsign(c)"
    model = parse(f"g (float[256, 64] x) => (float[256, 64] y) {{ {text} }}")
    draw = np.random.default_rng(0)
    for number, shape in enumerate([(64, 256), (256, 64)]):
        weight = (draw.normal(size=shape) / 20).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{number}"))
    prepared = prepare(model, Settings(threads=1, target="none", not_counted=BESIDE))
    machine = read_machine("cpu-openvino")
    machine = machine.with_devices([replace(d, threads=1) for d in machine.devices])
    took = {"MatMul": 3e-3, "Erf": 2e-3, "Softsign": 2e-3}
    slow = {op.name: took[op.op_type] for op in prepared.graph.ops}
    quick = {op.name: 2e-3 for op in prepared.graph.ops if op.op_type == "MatMul"}
    tables = {"cpu": CostTable(slow, {}, "given"), "openvino": CostTable(quick, {}, "given")}
    monkeypatch.setattr(throughput, "_tried", lambda target, trials, found: found)
    best = replace(ANY, gap=0.0)
    result = planned(prepared, machine, contiguous=None, costs=lambda _: tables, options=best)
    facts = result.facts()
    assert all(check.ok for check in result.checks), result.checks
    assert [row[0] for row in facts["stages"]] == ["openvino", "cpu"] * 2
    assert facts["max_load_seconds"] == pytest.approx(4e-3)
    assert facts["status"] == "optimal"


def test_the_shape_that_is_quicker_is_taken(
    thirds: Prepared, chain: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the costs; what trials tell depends on the machine."""
    monkeypatch.setattr(throughput, "_tried", lambda target, trials, found: found)
    machine = processors(2)
    assert planned(thirds, machine, contiguous=None).facts()["rounds"]
    assert not planned(thirds, machine, contiguous=None, replicas=None).facts()["rounds"]
    facts = planned(chain, machine, contiguous=None).facts()
    if facts["rounds"]:
        alone = planned(chain, machine).candidate.artifact
        assert isinstance(alone, Pipelined)
        assert 1 / facts["samples_per_second_predicted"] < alone.seconds


def test_samples_in_flight_are_as_many_as_fit(chain: Prepared) -> None:
    machine = processors(2)
    peaks = {n: planned(chain, machine, in_flight=n).candidate.artifact.predict() for n in (2, 4)}
    assert all(peaks[2][name] <= peaks[4][name] for name in machine.names)
    most = max(peaks[4].values())
    assert most > max(peaks[2].values())
    for limit in (most - 1, max(peaks[2].values())):
        facts = planned(chain, machine, budget=str(limit)).facts()
        assert facts["in_flight"] < 4 or facts["partitions"] > 2  # fewer samples, or smaller runs
        for row in facts["devices"]:
            assert row["peak_measured_bytes"] <= limit
            assert row["peak_predicted_bytes"] <= limit


def test_the_whole_model_on_every_device_has_the_load_of_balance(
    lenet: Prepared, tmp_path: Path
) -> None:
    machine = processors(2)
    result = planned(lenet, machine, replicas=None)
    facts = result.facts()
    assert all(check.ok for check in result.checks), result.checks
    assert facts["stages"] == [list(machine.names)]
    assert facts["status"] == "optimal"
    alone = sum(priced(lenet, machine)["cpu:0"].seconds.values())
    assert facts["max_load_seconds"] == pytest.approx(alone / 2, rel=1e-3)
    assert len({row["peak_predicted_bytes"] for row in facts["devices"]}) == 1
    path = tmp_path / "out.onnx"
    result.save(path)
    made = read_deployment(path)
    assert made.replicas == {"cpu:0": ("cpu:1",)}
    found = verify_deployment(made, lenet.feeds)
    assert found.ok, found.checks


def test_stages_are_on_as_many_devices_as_fit() -> None:
    """Four devices and mostly weights: the whole model on each, two stages on two each, a chain;
    by what they hold."""
    model = build("mlp", batch=2, features=64, width=64, layers=8)
    prepared, machine = (
        prepare(model, Settings(threads=1, target="none", not_counted=BESIDE)),
        processors(4),
    )
    peak = max(planned(prepared, machine, replicas=None).candidate.artifact.predict().values())
    found = []
    for share in (1.0, 0.7, 0.45):
        result = planned(prepared, machine, budget=str(int(share * peak)), replicas=None)
        facts = result.facts()
        assert all(check.ok for check in result.checks), result.checks
        assert all(row["peak_measured_bytes"] <= share * peak for row in facts["devices"])
        assert facts["bound_seconds"] <= facts["max_load_seconds"] * (1 + 1e-9)
        found.append([len(row) for row in facts["stages"]])
    assert found == [[4], [2, 2], [1, 1, 1, 1]]


def test_too_little_memory_is_refused_with_the_op(chain: Prepared) -> None:
    with pytest.raises(InfeasibleError) as error:
        planned(chain, processors(2), budget="4KiB")
    assert error.value.exit_code == 3
    assert "proven" in error.value.why


def test_cuts_of_the_listed_order_fit_when_they_are_deployed(chain: Prepared) -> None:
    """At many limits: what is said to fit does."""
    machine = processors(2)
    tables = priced(chain, machine)
    model = device_model(chain.graph, Site(machine), tables)
    made = bridge(model, tables, {})
    free = along_order(model, made, {}, 2)
    assert free is not None
    assert free.value == pytest.approx(best_cut(chain, machine))
    most = max(planned(chain, machine, in_flight=2).candidate.artifact.predict().values())
    seen = []
    for share in np.linspace(0.7, 1.3, 7):
        limit = int(share * most)
        cut = along_order(model, made, dict.fromkeys(machine.names, limit), 2)
        seen.append(cut is not None)
        if cut is not None:
            result = planned(chain, machine, budget=str(limit), in_flight=2)
            peaks = result.candidate.artifact.predict()
            assert all(peak <= limit for peak in peaks.values())
    assert any(seen)
    assert not all(seen)
    assert all(not a or b for a, b in pairwise(seen))  # more memory never fits less


UNIT_BYTES = 64 * 4096 * 4


@pytest.fixture(scope="module")
def twice() -> Prepared:
    """Six values of a unit that are quick to make, each read early and late."""
    kinds_ = ("Sin", "Cos", "Tanh", "Sigmoid", "Softsign", "Erf")
    first = "\n".join(
        f"e{i} = Add(x, w{i})\na{i} = {kind}(e{i})\nb{i} = ReduceMean<keepdims: int = 1>(a{i})"
        for i, kind in enumerate(kinds_)
    )
    later = "\n".join(
        f"m{i} = Mul(a{i}, s)\nr{i} = ReduceMax<keepdims: int = 1>(m{i})" for i in range(6)
    )
    every = [", ".join(f"{name}{i}" for i in range(6)) for name in "br"]
    model = parse(
        f"g (float[64, 1] x) => (float[1, 1] y) {{ {first}\ns = Sum({every[0]})\n{later}\n"
        f"y = Sum({every[1]}) }}"
    )
    draw = np.random.default_rng(0)
    for i in range(6):
        weight = draw.normal(size=(1, 4096)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{i}"))
    return prepare(model, Settings(threads=1, target="none", not_counted=BESIDE))


def test_a_stage_recomputes_where_memory_is_short(twice: Prepared) -> None:
    """No cut of the order fits as it is, for one device holds all values at some time."""
    machine, limit = processors(2), 4 * UNIT_BYTES
    tables = priced(twice, machine)
    model = device_model(twice.graph, Site(machine), tables)
    limits = dict.fromkeys(machine.names, limit)
    made = bridge(model, tables, limits)
    assert along_order(model, made, limits, 2) is None
    result = planned(twice, machine, budget=str(limit), in_flight=2)
    facts = result.facts()
    assert all(check.ok for check in result.checks), result.checks
    assert all(row["peak_measured_bytes"] <= limit for row in facts["devices"])
    ran = [step.op for step in result.candidate.artifact.plan.steps if isinstance(step, Compute)]
    assert len(ran) > len(set(ran)) == len(twice.graph.ops)
    assert facts["bound_seconds"] <= facts["max_load_seconds"]
    assert throughput.AGAIN in result.candidate.artifact.plan.provenance.notes


def test_the_best_cut_is_found_though_few_stretches_are_planned(
    twice: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against every cut for two devices, with every stretch over its bytes planned."""
    monkeypatch.setattr(stage_remakes, "MOST", 1_000)
    monkeypatch.setattr(stage_remakes, "WORK", 100)
    machine = processors(2)
    tables = priced(twice, machine)
    model = device_model(twice.graph, Site(machine), tables)
    made = bridge(model, tables, {})
    limits = dict.fromkeys(machine.names, 4 * UNIT_BYTES)
    asked, all_ = Remakes(model), Remakes(model)
    cut = along_order(model, made, limits, 2, 1, asked)
    order = stage_cuts._Order(model, made, 1)
    within = stage_cuts._Within(order, limits, 2, all_)
    best, last = inf, order.places[-1]
    for place in order.places[1:]:
        one, two = made.devices
        stages = [((one,), 0, place), *[((two,), place, last)] * (place < last)]
        for stage in stages:
            within.remade(*stage)
        best = min(best, max(order.load(s[0][0], *s[1:]) + within.more(*s) for s in stages))
    assert cut is not None
    assert cut.value == pytest.approx(best)
    assert len(asked._known) < len(all_._known)


def test_a_device_with_more_memory_gets_the_larger_stage(chain: Prepared) -> None:
    machine = processors(2)
    peaks = planned(chain, machine, in_flight=2).candidate.artifact.predict()
    small, large = sorted(peaks.values())
    if small == large:
        pytest.skip("both stages take the same")
    for tight, wide in (machine.names, machine.names[::-1]):
        budget = f"{tight}={small},{wide}={large}"
        result = planned(chain, machine, budget=budget, in_flight=2)
        assert result.candidate.artifact.predict() == {tight: small, wide: large}


def test_a_plan_is_made_with_what_a_trial_took(
    lenet: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "TRIALS", 3)
    monkeypatch.setattr(pipelined, "MOST", 2)  # fewer than there are inside
    result = planned(lenet, processors(2))
    assert result.facts()["tried"]
    assert all(check.ok for check in result.checks)


def test_what_is_proven_of_less_than_the_budgets_is_no_proof(lenet: Prepared) -> None:
    """A pipeline takes more than was predicted, and none fits in so much less."""
    machine = processors(2)
    priced_at = priced(lenet, machine)
    target = SeveralDevices(lenet, Site(machine, {"cpu:0": 100}), priced_at, Phases())
    asked: list[dict[str, int]] = []

    def place(_: Any, __: Any, limits: dict[str, int]) -> Any:
        asked.append(dict(limits))
        if asked[1:]:
            raise InfeasibleError("none fits")
        return SimpleNamespace(measure=lambda _: SimpleNamespace(peaks={"cpu:0": 130}))

    with pytest.raises(NoPlanError, match="more than was predicted"):
        throughput._carried_out(target, Trials(ANY, dict), place)  # type: ignore[arg-type]
    assert asked == [{"cpu:0": 100}, {"cpu:0": 70}]


def test_a_trial_corrects_alike_devices_alike(lenet: Prepared) -> None:
    machine = processors(2)
    artifact = planned(lenet, machine).candidate.artifact
    assert isinstance(artifact, Pipelined)
    target_tables = priced(lenet, machine)
    artifact = replace(artifact, tables=target_tables)
    assert artifact.trial is not None

    class Target:
        tables = target_tables

    found = corrected(Target(), artifact)  # type: ignore[arg-type]
    first, second = (found[name].seconds for name in machine.names)
    assert first == second
    assert [t.alone for t in found.values()] == [t.total for t in target_tables.values()]
    for part in artifact.made.parts.partitions:
        factors = {
            round(first[op.name] / target_tables[part.device].seconds[op.name], 9)
            for op in part.graph.ops
            if target_tables[part.device].seconds[op.name]
        }
        assert len(factors) == 1


def test_two_kinds_of_devices_are_accelerators_and_cpus(lenet: Prepared) -> None:
    own = Device("own", PROVIDERS["openvino"])
    cpus = tuple(Device(f"cpu:{i}", threads=1) for i in range(2))
    links = tuple(
        Link(a.name, b.name, 1e10, 0.0, True) for a in (own, *cpus) for b in (own, *cpus) if a != b
    )
    machine = Machine((*cpus, own), links)
    assert kinds(machine) == (("own",), ("cpu:0", "cpu:1"))
    table = priced(lenet, processors(1))["cpu:0"]
    quick = CostTable({k: v / 2 for k, v in table.seconds.items()}, {}, "given")
    quick.seconds.pop(lenet.graph.ops[0].name)
    tables = {"cpu:0": table, "cpu:1": table, "own": quick}
    graph = bridge(device_model(lenet.graph, Site(machine), tables), tables, {}).graph
    assert (graph.accelerators, graph.cpus) == (1, 2)
    assert not graph.supported[0]
    assert graph.supported[1:].all()
    np.testing.assert_allclose(graph.acc[1:], graph.cpu[1:] / 2)
    again = from_json(json.loads(json.dumps(to_json(graph))))
    np.testing.assert_array_equal(again.size, graph.size)
    assert again.names == graph.names
    three = Machine((*cpus[:1], own, Device("npu", PROVIDERS["coreml"])))
    with pytest.raises(UnsupportedError, match="3 kinds"):
        kinds(three)


def test_what_does_not_go_with_throughput(lenet: Prepared) -> None:
    machine = processors(2)
    with pytest.raises(UsageError, match="--pin"):
        planned(lenet, machine, pins=[("*", "cpu:0")])
    with pytest.raises(UsageError, match="--in-flight goes with"):
        Request("", machine, ANY, in_flight=2)
    with pytest.raises(UsageError, match="too many samples in flight"):
        planned(lenet, machine, in_flight=10**9)
    with pytest.raises(UsageError, match="--replicas goes with"):
        Request("", machine, ANY, replicas=2)
    with pytest.raises(UsageError, match="--any goes with"):
        Request("", machine, ANY, contiguous=False)
    with pytest.raises(UsageError, match="does not go with --any"):
        planned(lenet, machine, contiguous=False, replicas=2)
    step = prepare(build("mlp", batch=4, layers=2), Settings(threads=1, train=Training()))
    with pytest.raises(UsageError, match="training step"):
        planned(step, machine)
