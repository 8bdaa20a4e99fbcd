"""Parameters and optimizer state on devices that hold them: where they live, count, and are one."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from models import build
from onnxremat.device.machine import Machine
from onnxremat.errors import InfeasibleError, UsageError
from onnxremat.grad import Settings as Training
from onnxremat.pipeline.devices.device_plan import device_model
from onnxremat.pipeline.devices.site import Site
from onnxremat.pipeline.devices.state_homes import state_homes
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.bounds import least_budgets
from onnxremat.planner.search import warm_up
from onnxremat.units import parse_bytes
from tests.devices.plans import optimized, processors


def holders(count: int) -> Machine:
    machine = processors(count)
    return machine.with_devices([replace(d, holds_state=True) for d in machine.devices])


@pytest.fixture(scope="module")
def step() -> Prepared:
    warm_up(2)
    model = build("mlp", batch=8)
    # Not what lies beside state, weights and values.
    settings = Settings(threads=1, not_counted=("inputs", "session"))
    return prepare(model, replace(settings, train=Training(optimizer="adamw")))


def state_bytes(step: Prepared) -> int:
    return sum(step.graph.tensors[old].bytes for old, _ in step.in_place)


def test_what_is_updated_together_lives_together(step: Prepared) -> None:
    machine = holders(2)
    homes = state_homes(step.graph, machine, step.in_place, {})
    assert set(homes) == {old for old, _ in step.in_place}
    by_parameter: dict[str, set[str]] = {}
    for name, home in homes.items():
        if name.endswith((".weight", ".bias")):
            moments = {homes[n] for n in homes if n.startswith(name) and n != name}
            assert moments <= {home}, name
            by_parameter[name] = moments
    assert any(by_parameter.values())  # moments were found under their parameters' names
    held = {
        name: sum(step.graph.tensors[n].bytes for n, at in homes.items() if at == name)
        for name in machine.names
    }
    assert sum(held.values()) == state_bytes(step)
    assert min(held.values()) > 0
    assert not state_homes(step.graph, processors(2), step.in_place, {})


def test_shares_follow_budgets(step: Prepared) -> None:
    machine = holders(2)
    homes = state_homes(step.graph, machine, step.in_place, {"cpu:0": 1, "cpu:1": 1000})
    first = sum(step.graph.tensors[n].bytes for n, at in homes.items() if at == "cpu:0")
    assert first < state_bytes(step) / 10


def test_two_devices_hold_the_state_that_one_cannot(step: Prepared) -> None:
    machine = holders(2)
    one = Machine(machine.devices[:1])
    costs = {"cpu:0": step.costs}
    (least,) = least_budgets(device_model(step.graph, Site(one), costs, step.in_place).problem)
    assert least > state_bytes(step)
    limit = least - 1
    with pytest.raises(InfeasibleError, match="cannot run within") as refused:
        optimized(step, one, str(limit))
    needs = re.search(r"needs ([\d.]+ \w+)", refused.value.why)
    assert needs is not None
    assert parse_bytes(needs.group(1)) >= 0.99 * least  # of three digits
    result = optimized(step, machine, str(limit))
    assert result.checks
    assert all(check.ok for check in result.checks), result.checks
    held = result.candidate.measured.recorded.bytes
    weights = sum(t.bytes for t in step.graph.tensors.values() if t.role.value == "weight")
    resident = sum(found.resident for found in held.values())
    # Every byte of state counts on one device; weights of several partitions once in each.
    assert (
        state_bytes(step)
        <= resident
        <= state_bytes(step) + weights * len(result.deployment.parts.partitions)
    )
    assert all(found.peak <= limit for found in held.values())
    _one_buffer_each(step, result.deployment)


def _one_buffer_each(step: Prepared, made) -> None:
    """Wherever state is read or written it is the caller's own array."""
    state = {old: np.array(step.feeds[old]) for old, _ in step.in_place}
    given = {name: value for name, value in step.feeds.items() if name not in state}
    before = {name: array.copy() for name, array in state.items()}
    with made.executor(state) as executor:
        executor.run(given)
        assert not executor.copies.between
        assert not any(key[0] in state for key in executor._held.store)
    assert any(not np.array_equal(state[name], before[name]) for name in state)


def test_state_lives_where_a_pin_has_it_updated(step: Prepared) -> None:
    machine, costs = holders(2), dict.fromkeys(("cpu:0", "cpu:1"), step.costs)
    (name, *_) = [step.graph.ops[step.graph.producer[new]].name for _, new in step.in_place]
    for device in machine.names:
        for pins in ([(name, device)], [("update*", device)]):
            made = device_model(step.graph, Site(machine, pins=pins), costs, step.in_place)
            able = np.isfinite(made.problem.cost[:, made.names.ops.index(name)])
            assert [at for at, may in zip(machine.names, able, strict=True) if may] == [device]


def test_pins_that_take_state_apart_are_refused(step: Prepared) -> None:
    """A parameter here, its moments there."""
    machine, costs = holders(2), dict.fromkeys(("cpu:0", "cpu:1"), step.costs)
    makers = {old: step.graph.ops[step.graph.producer[new]].name for old, new in step.in_place}
    homes = state_homes(step.graph, machine, step.in_place, {})
    parameter = next(n for n in homes if n.endswith(".weight"))
    moment = next(n for n in homes if n != parameter and n.startswith(parameter))
    pins = [(makers[parameter], "cpu:0"), (makers[moment], "cpu:1")]
    with pytest.raises(UsageError, match=f"may update all of {parameter}"):
        device_model(step.graph, Site(machine, pins=pins), costs, step.in_place)
