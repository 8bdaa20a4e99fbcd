"""The planner over devices, carried out: budgets that one device cannot hold, pins, views."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from onnxremat import load_devices
from onnxremat.cost.table import CostTable
from onnxremat.device.files import read_machine
from onnxremat.device.machine import PROVIDERS, STORAGE, Device, Link, Machine
from onnxremat.errors import InfeasibleError, NoPlanError, UsageError
from onnxremat.execute.deployment import Deployment, deploy
from onnxremat.execute.partition_cuts import Terms
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.devices.device_plan import device_model
from onnxremat.pipeline.devices.device_ways import Trials, best
from onnxremat.pipeline.devices.several_devices import SeveralDevices, proven
from onnxremat.pipeline.devices.site import Site
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.verify import verify_deployment
from onnxremat.planner.bounds import least_budgets, quick_makespan_bound
from onnxremat.planner.ladder import solve
from onnxremat.planner.plan_steps import provenance_of
from onnxremat.planner.search import warm_up
from onnxremat.planner.semantics import peaks
from onnxremat.planner.solution import Certificate, Status, unsolved
from onnxremat.rewrite.partition import Counted
from onnxremat.schedule.plan import Compute, Transfer
from onnxremat.session.process import SESSION, further_bytes
from tests.devices.plans import BESIDE, optimized, priced, processors
from tests.limits import LONG
from tests.planner.asking import asked
from tests.planner.device_oracle import random_device_problem
from tests.toolbox import graph_of, parse, training_chain


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """The compiled search is ready, so that short time limits are spent on planning."""
    warm_up(2)


@pytest.fixture(scope="module")
def chain() -> Prepared:
    return prepare(
        to_model(training_chain(8, 16, 512)), Settings(threads=1, target="none", not_counted=BESIDE)
    )


def test_a_later_round_proves_nothing_of_the_whole_budgets() -> None:
    """It plans for less, as the first plan took more when it was carried out."""
    problem = random_device_problem(1, 6, plain=True)
    budgets = [1000, 1000]
    found = solve(problem, budgets, asked(time_limit=LONG, fixed_order=True))
    low = replace(found, certificate=Certificate(0.5 * found.time, "first", True))
    tight = replace(found, certificate=Certificate(found.time, "second", True))
    told = proven(problem, tight, low, gap=1e-3)
    assert told.certificate == low.certificate
    assert told.status is Status.FEASIBLE
    assert proven(problem, low, tight, gap=1e-3).status is Status.OPTIMAL
    assert found.schedule is not None
    steps = found.schedule.steps
    moved = replace(found, schedule=replace(found.schedule, steps=steps[::-1]))
    ordered = replace(low, certificate=Certificate(0.5 * found.time, "first", False))
    assert proven(problem, moved, ordered, gap=1e-3).certificate.kind == "least run"


def test_what_is_proven_in_one_order_is_no_proof_in_all(chain: Prepared) -> None:
    """Formulations look in the order of the graph, whatever is asked for."""
    target = SeveralDevices(chain, Site(processors(1), {"cpu:0": 1}), {}, Phases())
    fixed = replace(chain, settings=replace(chain.settings, fixed_order=True))
    ordered = unsolved(Status.INFEASIBLE, Certificate(inf, "lazy-cuts(3)", any_order=False))
    model = SimpleNamespace(names=SimpleNamespace(ops=()))
    for prepared, certificate, error in (
        (chain, ordered.certificate, NoPlanError),
        (fixed, ordered.certificate, InfeasibleError),
        (chain, replace(ordered.certificate, any_order=True), InfeasibleError),
    ):
        asked_of = replace(target, prepared=prepared)
        vars(asked_of)["model"] = model
        told = asked_of.refusal(replace(ordered, certificate=certificate))
        assert type(told) is error, told
        assert ("others may" in told.why) == (error is NoPlanError)


@pytest.mark.slow
def test_every_device_keeps_its_budget(chain: Prepared) -> None:
    result = optimized(chain, processors(2), "0.9x")
    facts = result.facts()
    assert result.checks
    assert all(check.ok for check in result.checks), result.checks
    limit = int(0.9 * chain.baseline_peak)
    for row in facts["devices"]:
        assert row["budget_bytes"] == limit
        assert row["peak_measured_bytes"] <= limit
        assert row["peak_worst_case_bytes"] <= limit


def test_two_devices_hold_what_one_cannot() -> None:
    """Weights that fill one device: there is nothing to recompute or to reorder."""
    text = " ".join(f"v{i + 1} = MatMul(v{i}, w{i})" for i in range(6))
    model = parse(f"g (float[4, 64] v0) => (float[4, 64] v6) {{ {text} }}")
    for i in range(6):
        weight = np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{i}"))
    prepared = prepare(model, Settings(threads=1, target="none", not_counted=BESIDE))
    budget = str(4 * 64 * 64 * 4)
    with pytest.raises(InfeasibleError, match="cannot run within"):
        optimized(prepared, processors(1), budget)
    result = optimized(prepared, processors(2), budget)
    assert result.checks
    assert all(check.ok for check in result.checks), result.checks
    assert all(row["ops"] == 3 for row in result.facts()["devices"])


def test_pinned_ops_run_where_they_are_pinned(chain: Prepared) -> None:
    result = optimized(chain, processors(2), "2x", pins=[("Tanh", "cpu:1"), ("MatMul*", "cpu:0")])
    for part in result.deployment.parts.partitions:
        for op in part.graph.ops:
            if op.op_type in ("Tanh", "MatMul"):
                assert part.device == {"Tanh": "cpu:1", "MatMul": "cpu:0"}[op.op_type]
    with pytest.raises(UsageError, match="matches no op"):
        optimized(chain, processors(2), "2x", pins=[("Conv", "cpu:0")])
    with pytest.raises(UsageError, match="Tanh=cpu:1 decides nothing"):
        optimized(chain, processors(2), "2x", pins=[("*", "cpu:0"), ("Tanh", "cpu:1")])


def test_a_link_that_is_missing_is_named(chain: Prepared) -> None:
    apart = Machine(processors(2).devices, name="apart")
    with pytest.raises(
        UsageError, match=r"'apart' has no link from 'cpu:\d' to 'cpu:\d'"
    ) as refused:
        optimized(chain, apart, "2x", pins=[("Tanh", "cpu:1"), ("MatMul", "cpu:0")])
    assert "reads what op" in refused.value.where
    assert not optimized(chain, apart, "2x").deployment.parts.copies  # nothing has to cross


def test_views_come_along_to_the_device_that_reads_them() -> None:
    graph = graph_of("""g (float[4, 8] x) => (float[32] y, float[8, 4] z) {
        a = Sin(x)
        shape = Constant<value_ints: ints = [32]>()
        back = Constant<value_ints: ints = [8, 4]>()
        b = Reshape(a, shape)  y = Cos(b)
        c = Reshape(b, back)  z = Tanh(c)
    }""")
    machine = processors(2)
    prepared = prepare(to_model(graph), Settings(threads=1, target="portable"))
    result = optimized(
        prepared, machine, "8x", pins=[("Sin", "cpu:0"), ("Cos", "cpu:0"), ("Tanh", "cpu:1")]
    )
    assert result.checks
    assert all(check.ok for check in result.checks), result.checks
    moved = [copy.value for copy in result.deployment.parts.copies]
    assert moved == ["a"]  # the value itself, once; its views are remade where they are read
    second = [o.op_type for p in result.deployment.parts.partitions if p.device == "cpu:1"
              for o in p.graph.ops]  # fmt: skip
    assert second == ["Reshape", "Reshape", "Tanh"]
    with pytest.raises(UsageError, match="'Reshape' matches nothing but views") as refused:
        optimized(prepared, machine, "8x", pins=[("Reshape", "cpu:0"), ("Tanh", "cpu:1")])
    assert "run where what they show is read" in refused.value.why


def test_swapping_to_a_device_that_only_stores() -> None:
    """Recomputation being forbidden by its price, values wait in host memory."""
    graph = training_chain(4, 32, 512)
    machine = Machine(
        (Device("cpu", PROVIDERS["cpu"], threads=1), Device("host", STORAGE)),
        (Link("cpu", "host", 1e12, 1e-7), Link("host", "cpu", 1e12, 1e-7)),
    )
    tables = {"cpu": CostTable({op.name: 1e-2 for op in graph.ops}, {}, "given")}
    model = device_model(graph, Site(machine), tables)
    sizes = sorted(graph.tensors[n].bytes for op in graph.ops for n in op.writes)
    budget = 4 * sizes[-1] + graph.weight_bytes + 6 * 4096
    solution = solve(model.problem, [budget, float("inf")], asked(time_limit=LONG, threads=1))
    assert solution.schedule is not None
    plan = model.plan(solution.schedule, provenance_of(solution), [budget, 1 << 60])
    moves = [step for step in plan.steps if isinstance(step, Transfer)]
    assert {(move.source, move.target) for move in moves} == {("cpu", "host"), ("host", "cpu")}
    made = deploy(graph, plan, machine, tables, Terms({"cpu": budget + 4096}))
    found = verify_deployment(made, seeded_feeds(graph))
    assert found.ok, found.checks
    assert found.run.recorded.bytes["host"].peak > 0


def test_a_written_plan_keeps_the_order_of_starts(chain: Prepared) -> None:
    result = optimized(chain, processors(2), "4x")
    steps = result.deployment.plan.steps
    runs = {step.op for step in steps if isinstance(step, Compute)}
    assert runs == {op.name for op in chain.graph.ops}
    facts = result.facts()
    assert facts["makespan_predicted"] > 0
    assert np.isfinite(facts["bound_seconds"])


def test_the_best_device_alone_is_given_its_inputs() -> None:
    """So that it takes no less than what is proven of all plans."""
    graph = graph_of("g (float[1000] x) => (float[1000] y) { a = Sin(x) y = Cos(a) }")
    machine = read_machine("cpu-cuda")
    names = [op.name for op in graph.ops]
    tables = {"cpu": CostTable({names[0]: 1.0, names[1]: 1.0}, {}, "given"),
              "cuda:0": CostTable({names[0]: 1e-3, names[1]: 1e-3}, {}, "given")}  # fmt: skip
    problem = device_model(graph, Site(machine), tables).problem
    found = solve(problem, [float("inf")] * 2, asked(time_limit=LONG, threads=1))
    assert problem.host_inputs == 1
    assert problem.reference == 2e-3 < found.certificate.bound
    assert problem.alone == pytest.approx(found.time)
    nowhere = {"cpu": CostTable({names[0]: 1.0}, {}, "given"),
               "cuda:0": CostTable({names[1]: 1e-3}, {}, "given")}  # fmt: skip
    assert device_model(graph, Site(machine), nowhere).problem.alone is None


def test_more_devices_than_are_planned_for() -> None:
    graph = graph_of("g (float[4] x) => (float[4] y) { y = Sin(x) }")
    with pytest.raises(UsageError, match="too many devices to plan for"):
        device_model(graph, Site(processors(16)), {})


NARROW = """g (float[8, 4096] x) => (float[8, 1] y) <int64[1] k = {1}> {
    a = Sin(x) b = Cos(a) c = Add(a, b) y = ReduceSum(c, k)
}"""


def narrow(**more: object) -> Prepared:
    settings = Settings(threads=1, target="none", not_counted=BESIDE, **more)
    return prepare(parse(NARROW), settings)


def test_what_holds_of_a_whole_batch_is_no_proof(warm: None) -> None:
    """Two parts, one per device, do not fit either; eight would."""
    with pytest.raises(NoPlanError, match="--split-batch 8"):
        optimized(narrow(fission=()), processors(2), str(120 << 10))


def test_regions_are_computed_in_parts_where_whole_ops_find_no_room(
    warm: None, tmp_path: Path
) -> None:
    result = optimized(narrow(), processors(2), str(120 << 10))
    assert any("computed in parts" in note for note in result.plan.provenance.notes)
    assert result.prepared.settings.fission
    assert max(row.peak for row in result.deployment.predicted.values()) <= 120 << 10
    found = verify_deployment(result.deployment, seeded_feeds(result.prepared.graph))
    assert found.ok, found.checks
    x = seeded_feeds(result.prepared.graph)["x"]
    result.save(tmp_path / "out.onnx")
    with load_devices(tmp_path / "out.onnx") as executor:
        y = executor.run({"x": x})["y"]
    np.testing.assert_allclose(y, (np.sin(x) + np.cos(np.sin(x))).sum(1, keepdims=True), rtol=1e-5)


def test_what_no_parts_can_do_is_proven(warm: None) -> None:
    with pytest.raises(InfeasibleError):
        optimized(narrow(), processors(2), "8")
    with pytest.raises(NoPlanError, match="with the batch whole"):
        optimized(narrow(), processors(2), str(2 << 10))


def test_plans_count_what_sessions_keep(chain: Prepared) -> None:
    """So that a plan that fits is the first one, on one device and on several."""
    site = Site(processors(2), counted=Counted(sessions=True))
    tables = priced(chain, site.machine)
    problem = device_model(chain.graph, site, tables).problem
    plain = device_model(chain.graph, Site(processors(2)), tables).problem
    whole = SESSION + further_bytes(chain.graph)
    assert 0 <= whole - (problem.resident - plain.resident) < len(chain.graph.ops)
    alone = solve(problem, [inf, 0.0], asked(time_limit=LONG, threads=1))
    assert alone.schedule is not None  # the other one runs nothing, and keeps nothing
    assert peaks(problem, alone.schedule)[1] == 0


def test_a_plan_that_leaves_no_room_for_a_slab_is_made_for_less(
    chain: Prepared, warm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose proof says nothing of the whole budgets; the quicker one is taken."""
    machine, tables = processors(2), priced(chain, processors(2))
    need = least_budgets(device_model(chain.graph, Site(machine), tables).problem)[0]
    limits = dict.fromkeys(machine.names, 2 * need)
    target = SeveralDevices(chain, Site(machine, limits, objective="makespan"), tables, Phases())
    made: list[Deployment] = []

    def tried(deployment: Deployment, *_: object, **__: object) -> Deployment:
        made.append(deployment)
        first = len(made) == 1
        took = {index: each * (3 if first else 1) for index, each in deployment.seconds.items()}
        return replace(deployment, tried=(took,), crowded=need // 4 if first else 0)

    monkeypatch.setattr("onnxremat.pipeline.devices.device_ways.tried", tried)
    trials = Trials(asked(time_limit=2.0, threads=1), lambda _: tables)
    found = best(target, trials)
    assert isinstance(found, Candidate)
    assert len(made) == 2
    assert found.artifact.made.plan.steps == made[1].plan.steps
    less = target.roomier(need // 4).aim.limits
    assert all(less[name] < limits[name] for name in machine.names)
    solution = found.artifact.solution
    assert all(peak <= less[name] for name, peak in zip(machine.names, solution.peaks, strict=True))
    bound, _ = quick_makespan_bound(target.model.problem)
    assert solution.certificate.bound <= bound
    assert solution.status is Status.FEASIBLE or solution.gap <= target.gap
