"""What partitions, boundaries and waiting are predicted to take."""

from __future__ import annotations

import threading

import pytest

from onnxremat.cost.boundaries import (
    CALL,
    arriving_seconds,
    crossing_seconds,
    leaving_seconds,
)
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Link, Machine
from onnxremat.execute.action_times import action_seconds
from onnxremat.execute.deployment import deploy
from onnxremat.execute.streams import finish_times
from onnxremat.execute.tokens import Token
from onnxremat.schedule.assign import assigned
from tests.devices.plans import processors
from tests.toolbox import graph_of

CHAIN = """g (float[1000] x) => (float[1000] z) { a = Sin(x)  b = Cos(a)  z = Tanh(b) }"""


def machine(latency: float = 0.0) -> Machine:
    ends = (("cpu:0", "cpu:1"), ("cpu:1", "cpu:0"))
    return Machine(processors(2).devices, tuple(Link(a, b, 1e9, latency, True) for a, b in ends))


def table(seconds: float, **more: float) -> CostTable:
    return CostTable(dict.fromkeys(("Sin", "Cos", "Tanh"), seconds), {}, "given", **more)


def test_what_goes_between_sessions_goes_through_memory() -> None:
    graph = graph_of(CHAIN)
    graph = graph.with_ops([op.renamed(op.op_type, {}) for op in graph.ops], graph.tensors)
    costs = dict.fromkeys(("cpu:0", "cpu:1"), table(1e-3, bandwidth=1e9, value=1e-6))
    places = {"Sin": "cpu:0", "Cos": "cpu:0", "Tanh": "cpu:1"}
    made = deploy(graph, assigned(graph, places, machine()), machine(), costs)
    first, handed, second = (made.seconds[index] for index in range(3))
    assert first == pytest.approx(2e-3 + CALL + 2e-6 + 2 * 4000 / 1e9)  # b: fetched and written
    assert handed == 0
    assert second == pytest.approx(1e-3 + CALL + 2e-6 + (4000 + 2 * 4000) / 1e9)  # b read, z made
    assert action_seconds(made.parts, machine(), costs) == made.seconds
    priced = crossing_seconds(costs["cpu:0"], costs["cpu:1"], 4000)
    assert priced == pytest.approx(CALL + 2e-6 + 3 * 4000 / 1e9)
    out, into = leaving_seconds(costs["cpu:0"], 4000), arriving_seconds(costs["cpu:1"], 4000)
    assert out + into == pytest.approx(priced + CALL)
    assert crossing_seconds(costs["cpu:0"], None, 4000) == out
    assert crossing_seconds(None, costs["cpu:1"], 4000) == into


def test_who_waits_for_another_stream_is_woken() -> None:
    graph = graph_of(CHAIN)
    graph = graph.with_ops([op.renamed(op.op_type, {}) for op in graph.ops], graph.tensors)
    places = {"Sin": "cpu:0", "Cos": "cpu:1", "Tanh": "cpu:1"}
    slow = machine(latency=0.5)
    made = deploy(graph, assigned(graph, places, slow), slow, dict.fromkeys(slow.names, table(1.0)))
    alone = max(end for _, end in finish_times(made.parts, slow, made.seconds, overlap=False))
    both = max(end for _, end in finish_times(made.parts, slow, made.seconds))
    assert both == pytest.approx(alone + 0.5)


@pytest.mark.parametrize("look", [False, True])
def test_tokens_are_taken_once_in_order(look: bool) -> None:
    there, back = Token(look), Token(look)
    heard = []

    def answer() -> None:
        left = None
        for _ in range(300):
            heard.append(there.get(left))
            back.put(heard[-1])
            left = back
        back.show()

    thread = threading.Thread(target=answer)
    thread.start()
    sent = [index % 3 > 0 for index in range(300)]
    for value in sent:
        there.put(value)
        there.show()
        assert back.get() is value
    thread.join()
    assert heard == sent
