"""Plans: their steps, their JSON, and every way a plan file can be wrong."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.errors import UsageError
from onnxremat.ort.infer import build_graph
from onnxremat.rewrite.emit import pack, unpack
from onnxremat.schedule.expand import expand, resolve
from onnxremat.schedule.plan import Compute, Free, Plan, Provenance, Transfer, graph_hash
from tests.toolbox import graph_of, random_dag, random_sequence

BODY = "g (float[64] x) => (float[64] y) { a = Sin(x) b = Cos(a) c = Exp(b) y = Add(c, a) }"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_json_round_trip(dag: int, which: int) -> None:
    graph = build_graph(random_dag(dag))
    facts = Provenance(
        planner="x", bound=0.25, notes=("a", "b"), settings={"dims": {"n": 3}}, graph_hash="h"
    )
    plan = Plan.of(graph, random_sequence(graph, Random(which)), facts)
    assert Plan.from_json(json.loads(plan.dumps())) == plan
    assert unpack(pack(plan)) == plan
    resolve(graph, plan.sequence)  # what was read can be carried out


def test_transfers_survive_the_round_trip() -> None:
    plan = Plan((Compute("a"), Transfer("t", "cpu", "cuda:0", 1), Free("t", 1, "cuda:0")))
    assert Plan.from_json(json.loads(plan.dumps())) == plan


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_every_copy_is_freed_once_after_its_last_reader(dag: int, which: int) -> None:
    graph = build_graph(random_dag(dag))
    plan = Plan.of(graph, random_sequence(graph, Random(which)))
    runs = iter(resolve(graph, plan.sequence))
    alive, freed = set(), set()
    for step in plan.steps:
        if isinstance(step, Compute):
            run = next(runs)
            assert set(run.reads) <= alive
            alive |= set(run.writes)
        else:
            assert (step.tensor, step.copy) in alive
            assert (step.tensor, step.copy) not in freed
            alive.discard((step.tensor, step.copy))
            freed.add((step.tensor, step.copy))
    assert alive == {(name, 0) for name in graph.outputs}


def damaged(**changes: object) -> dict:
    graph = graph_of(BODY)
    data = Plan.of(graph, [op.name for op in graph.ops]).to_json()
    for path, value in changes.items():
        *folders, last = path.split("__")
        place = data
        for folder in folders:
            place = place[folder]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value
    return json.loads(json.dumps(data))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": "something"}, "not an onnxremat plan"),
        ({"format": KeyError}, "not an onnxremat plan"),
        ({"version": 2}, "version 2 is not supported"),
        ({"version": KeyError}, "version None is not supported"),
        ({"steps": KeyError}, "it has no 'steps'"),
        ({"steps": None}, "damaged"),
        ({"steps": 7}, "damaged"),
        ({"steps": [["compute"]]}, "damaged"),
        ({"steps": [["jump", "a"]]}, "damaged"),
        ({"steps": [[]]}, "damaged"),
        ({"steps": ["compute"]}, "damaged"),
        ({"steps": [["compute", 5]]}, "damaged"),
        ({"steps": [["compute", "a", "b"]]}, "damaged"),
        ({"provenance": KeyError}, "damaged"),
        ({"provenance": None}, "damaged"),
        ({"provenance": [1]}, "damaged"),
        ({"provenance__colour": "red"}, "damaged"),
        ({"provenance__bound": "high"}, "damaged"),
        ({"provenance__settings": [1]}, "damaged"),
        ({"provenance__settings": {"shapes": 5}}, "settings are {'shapes': 5}"),
        ({"provenance__notes": 3}, "damaged"),
    ],
    ids=str,
)
def test_wrong_plan_files_say_so(changes: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Plan.from_json(damaged(**changes))


@pytest.mark.parametrize("data", [[], "text", 3, None, True])
def test_json_that_is_no_object_is_no_plan(data: object) -> None:
    with pytest.raises(UsageError, match="not an onnxremat plan"):
        Plan.from_json(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "!!", "abc", pack(Plan(()))[:-4], "é"])
def test_damaged_metadata_says_so(text: str) -> None:
    with pytest.raises(UsageError, match="damaged"):
        unpack(text)


def test_sequences_that_cannot_run_say_why() -> None:
    graph = graph_of(BODY)
    a, b, c, y = (op.name for op in graph.ops)
    with pytest.raises(UsageError, match="'nope', which the model does not have"):
        Plan.of(graph, [a, b, c, y, "nope"])
    with pytest.raises(UsageError, match="reads 'a' before it is made"):
        Plan.of(graph, [b, a, c, y])
    with pytest.raises(UsageError, match=f"never runs op '{y}'"):
        Plan.of(graph, [a, b, c])


def test_reads_go_to_the_latest_copy() -> None:
    graph = graph_of(BODY)
    a, b, c, y = (op.name for op in graph.ops)
    made = expand(graph, [a, b, a, b, c, a, y])
    assert [op.name for op in made.ops] == [a, b, f"{a}__r1", f"{b}__r1", c, f"{a}__r2", y]
    assert [op.inputs for op in made.ops] == [
        ("x",), ("a",), ("x",), ("a__r1",), ("b__r1",), ("x",), ("c", "a__r2"),
    ]  # fmt: skip
    assert [op.origin for op in made.ops] == ["", "", a, b, "", a, ""]


def test_graph_outputs_are_read_from_their_first_copy() -> None:
    graph = graph_of("g (float[8] x) => (float[8] a, float[8] y) { a = Sin(x) y = Cos(a) }")
    a, y = (op.name for op in graph.ops)
    made = expand(graph, [a, a, y])
    assert made.ops[-1].inputs == ("a",)


def test_graph_hash_sees_names_sizes_and_wiring_but_not_order() -> None:
    graph = graph_of(BODY)
    assert graph_hash(graph) == graph_hash(graph.with_ops(reversed(graph.ops)))
    for other in (
        BODY.replace("64", "32"),
        BODY.replace("Cos", "Sin"),
        BODY.replace("c, a", "a, c"),
    ):
        assert graph_hash(graph_of(other)) != graph_hash(graph)


def test_figures_of_a_plan() -> None:
    facts = Provenance(seconds=1.5, store_all_seconds=1.0, bound=1.2)
    assert (facts.overhead, facts.bound_overhead) == pytest.approx((0.5, 0.2))
    assert facts.gap == pytest.approx(0.3)
    assert Provenance().overhead == 0.0


def test_graph_hash_sees_what_ops_are_told() -> None:
    """A plan kept for one window is not one for another, of the same sizes."""
    pads = ("pads = [1, 1], dilations = [1]", "pads = [2, 2], dilations = [2]")
    made = {
        graph_hash(graph_of(f"""g (float[1, 2, 8] x, float[2, 2, 3] w) => (float[1, 2, 8] y) {{
            y = Conv<{pad}>(x, w) }}"""))
        for pad in pads
    }  # fmt: skip
    assert len(made) == 2
