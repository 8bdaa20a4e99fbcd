"""``place`` on the command line: answers, checks, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, listing
from tests.placement.oracle import judged

pytestmark = pytest.mark.usefixtures("folder")


def chain(**facts: Any) -> dict[str, Any]:
    """Six nodes in a row with a colour over two, and a backward node."""
    nodes = [
        {"id": 10 * v, "supportedOnFpga": 1, "cpuLatency": 40, "fpgaLatency": 4,
         "isBackwardNode": 0, "size": 100}
        for v in range(6)
    ]  # fmt: skip
    nodes[1]["colorClass"] = nodes[2]["colorClass"] = 7
    nodes.append({**nodes[0], "id": 99, "isBackwardNode": 1, "colorClass": 8})
    nodes[5]["colorClass"] = 8
    edges = [{"sourceId": 10 * v, "destId": 10 * v + 10, "cost": 1} for v in range(5)]
    edges.append({"sourceId": 50, "destId": 99, "cost": 1})
    data = {"maxFPGAs": 3, "maxCPUs": 0, "maxSizePerFPGA": 300, "nodes": nodes, "edges": edges}
    return {**data, **facts}


def written(path: str, data: Any) -> Path:
    """A JSON file."""
    file = Path(path)
    file.write_text(json.dumps(data))
    return file


def test_places_and_writes_a_split_that_passes_its_check(cli: Command) -> None:
    graph = written("graph.json", chain())
    said = cli("place", graph, "-o", "split.json", "--json")
    assert said.code == 0, said.err
    facts = said.facts
    assert facts["status"] == "optimal"
    assert facts["value"] == facts["bound"] == max(row["load"] for row in facts["devices"])
    where = {v: i for i, row in enumerate(facts["devices"]) for v in row["nodes"]}
    data = chain()
    second = judged(data, tuple(where[node["id"]] for node in data["nodes"]))
    assert second.load == facts["value"]
    assert second.fits
    assert second.chain
    split = json.loads(Path("split.json").read_text())
    assert split["maxLoad"] == facts["value"]
    assert [len(entry["nodes"]) for entry in split["fpgas"]] == [
        len(row["nodes"]) for row in facts["devices"]
    ]
    checked = cli("place", graph, "--check", "split.json", "--json")
    assert checked.code == 0, checked.err
    assert checked.facts["value"] == facts["value"]
    assert checked.facts["findings"] == []


def test_options_override_the_file(cli: Command) -> None:
    graph = written("graph.json", chain())
    one = cli("place", graph, "--accelerators", 1, "--memory", 700, "--json").facts
    assert one["value"] == 28
    both = cli("place", graph, "--accelerators", 1, "--memory", 700, "--cpus", 1, "--json").facts
    assert [row["kind"] for row in both["devices"]] == ["accelerator", "cpu"]
    assert cli("place", graph, "--memory", "1GiB", "--json").facts["value"] < one["value"]


def inference() -> dict[str, Any]:
    """The chain without its backward node."""
    data = chain(maxCPUs=1)
    data["nodes"].pop()
    data["edges"].pop()
    return data


def test_other_questions(cli: Command) -> None:
    graph = written("graph.json", chain())
    ours = cli("place", graph, "--json").facts
    free = cli("place", graph, "--any", "--time-limit", 1, "--json").facts
    assert free["bound"] <= free["value"] <= ours["value"]
    two = cli("place", graph, "--objective", "two-maxima", "--json").facts
    assert two["status"] == "optimal"
    assert two["value"] == two["two_maxima"] >= ours["value"]
    graph = written("inference.json", inference())
    ask = ("--objective", "latency", "--time-limit", 1)
    one = cli("place", graph, *ask, "-o", "split.json", "--json")
    assert one.code == 0, one.err
    assert one.facts["bound"] <= one.facts["value"] == one.facts["latency"]
    again = cli("place", graph, *ask, "--check", "split.json", "--json").facts
    assert again["value"] == pytest.approx(one.facts["value"])
    assert json.loads(Path("split.json").read_text())["totalLatency"] == one.facts["value"]
    both = cli("place", graph, *ask, "--calls", 2, "-o", "two.json", "--json").facts
    assert len(json.loads(Path("two.json").read_text())["fpgas"]) == 6
    checked = cli("place", graph, *ask, "--calls", 2, "--check", "two.json", "--json").facts
    assert checked["value"] == pytest.approx(both["value"])


def test_the_released_program_is_written(cli: Command) -> None:
    graph = written("graph.json", chain())
    facts = cli("place", graph, "--any", "--write-model", "m.mps", "--json").facts
    assert Path("m.mps").read_text().startswith("NAME any_max_load")
    more = cli("place", graph, "--write-model", "m.lp", "--json").facts
    assert more["columns"] > facts["columns"]
    cli("place", graph, "--write-model", "m.txt").assert_refused(2, ".mps")
    for option in (("-o", "split.json"), ("--check", "split.json")):
        stop = cli("place", graph, "--write-model", "other.lp", *option)
        stop.assert_refused(2, "stops before there is a split", option[0])
    assert listing() == ["graph.json", "m.lp", "m.mps"]


def test_questions_that_do_not_go_together(cli: Command) -> None:
    graph = written("graph.json", chain())
    cli("place", graph, "--objective", "speed").assert_refused(2, "'speed'", "two-maxima")
    cli("place", graph, "--calls", 2).assert_refused(2, "--calls is for latency")
    cli("place", graph, "--objective", "latency").assert_refused(7, "backward pass")
    cli("place", graph, "--objective", "latency", "--any").assert_refused(2, "--any")


@pytest.mark.parametrize("ask", [("--any",), ("--objective", "latency")])
def test_devices_without_work_take_no_time(ask: tuple[object, ...], cli: Command) -> None:
    """Ten thousand of them took minutes and gigabytes; more are refused, as in files."""
    graph = written("inference.json", inference())
    count = len(inference()["nodes"])
    limit = ("--time-limit", 1, "--cpus", 2)
    few = cli("place", graph, *ask, *limit, "--accelerators", count, "--json").facts
    said = cli("place", graph, *ask, *limit, "--accelerators", 9000, "-o", "many.json", "--json")
    assert said.facts["value"] == pytest.approx(few["value"])
    assert len(said.facts["devices"]) == 9000 + len(few["devices"]) - count
    assert cli("place", graph, *ask, "--accelerators", 9000, "--check", "many.json").code == 0
    for option in ("--accelerators", "--cpus"):
        assert cli("place", graph, option, 10_001).code == 2


def test_methods_side_by_side(cli: Command) -> None:
    graph = written("inference.json", inference())
    said = cli("compare", graph, "--time-limit", 1, "--json")
    assert said.code == 0, said.err
    rows = {(row["objective"], row["method"]): row for row in said.facts["methods"]}
    assert rows["throughput", "ip"]["bound"] <= rows["throughput", "dp"]["value"] + 1e-6
    best = rows["throughput", "dp"]
    assert best["status"] == "optimal"
    for method in ("dpl", "pipedream"):
        assert rows["throughput", method]["value"] >= best["value"]
    assert rows["throughput", "contract-layers"]["why"] == "no node of the graph has a layerId"
    assert rows["throughput", "one"]["value"] == 24
    assert "memory" in rows["throughput", "one"]["breaks"]
    least = rows["latency", "annealing"]["bound"]
    assert rows["latency", "greedy"]["value"] >= least
    assert "contract-layers" in cli("compare", graph, "--time-limit", 1).out
    for option in (("--budget", "1GiB"), ("--planner", "dtr"), ("--dim", "a=3"), ("--no-measure",)):
        cli("compare", graph, *option).assert_refused(2, f"{option[0]} is for planners")
    said = cli("compare", written("cpus.json", {**inference(), "maxFPGAs": 0}), "--time-limit", 0.2)
    assert (said.code, "no accelerator" in said.err) == (0, False), said.err
    assert "it places on accelerators only" in " ".join(said.out.split())


def test_a_table_for_people(cli: Command) -> None:
    said = cli("place", written("graph.json", chain()))
    assert said.code == 0
    assert "accelerator 0" in said.out
    assert "optimal" in said.out


def test_the_table_fits_80_columns(cli: Command) -> None:
    data = chain(maxFPGAs=12, maxSizePerFPGA=17179869184 + 12345)
    for node in data["nodes"]:
        node |= {"fpgaLatency": 1234.56789, "size": 123456789}
    said = cli("place", written("graph.json", data))
    assert said.code == 0
    assert "accelerator 11" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (199, ("proven", "must share a device", "200 bytes")),
        (233, ("proven", "all nodes take 700 bytes")),
        (250, ("proven", "every chain")),
    ],
)
def test_infeasible_memory_is_proven(cli: Command, memory: int, words: tuple[str, ...]) -> None:
    graph = written("graph.json", chain())
    cli("place", graph, "--memory", memory, "-o", "split.json").assert_refused(3, *words)
    assert listing() == ["graph.json"]


def test_what_cannot_run_on_an_accelerator_needs_a_cpu(cli: Command) -> None:
    data = chain()
    data["nodes"][0]["supportedOnFpga"] = False
    graph = written("graph.json", data)
    cli("place", graph).assert_refused(3, "node 0 cannot run on an accelerator")
    facts = cli("place", graph, "--cpus", 1, "--json").facts
    assert facts["devices"][-1]["nodes"] == [0]


SPLITS = {
    "one device per node": ([[0, 10, 20], [30, 40], []], ("on no device", "no released program")),
    "colours": ([[0, 10], [20, 30], [40, 50, 99]], ("colour 7", "greedy.cpp")),
    "memory": ([[0, 10, 20, 30], [40], [50, 99]], ("400 bytes", "dp.cpp, greedy.cpp")),
    "number of accelerators": (
        [[0], [10, 20], [30, 40], [50, 99]], ("4 of kind accelerator", "greedy.cpp"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", SPLITS)
def test_a_split_that_breaks_a_rule(cli: Command, rule: str) -> None:
    graph = written("graph.json", chain())
    groups, words = SPLITS[rule]
    written("split.json", {"fpgas": [{"nodes": group} for group in groups], "cpus": []})
    said = cli("place", graph, "--check", "split.json")
    assert said.code == 5
    assert f"BROKEN  {rule}" in said.err
    for word in words:
        assert word in " ".join(said.err.split())


def test_a_split_that_is_not_contiguous_is_told_and_passes(cli: Command) -> None:
    graph = written("graph.json", chain())
    groups = [[0, 30], [10, 20], [40, 50, 99]]
    written("split.json", {"fpgas": [{"nodes": group} for group in groups], "cpus": []})
    said = cli("place", graph, "--check", "split.json")
    assert said.code == 0
    words = "contiguous: a path of the forward pass leaves accelerator 0"
    assert words in " ".join(said.err.split())


def test_backward_nodes_go_where_their_colour_is(cli: Command) -> None:
    graph = written("graph.json", chain())
    groups = [[0, 10, 20], [30, 40], [50]]
    written("split.json", {"fpgas": [{"nodes": group} for group in groups]})
    said = cli("place", graph, "--check", "split.json", "--json")
    assert said.code == 0
    assert said.facts["devices"][2]["nodes"] == [50, 99]


def edited(**changes: Any) -> dict[str, Any]:
    """The chain with its second node changed; None drops a key."""
    data = chain()
    node = {**data["nodes"][1], **changes}
    data["nodes"][1] = {key: value for key, value in node.items() if value is not None}
    return data


def with_edge(tail: int, head: int, cost: float = 1) -> dict[str, Any]:
    data = chain()
    data["edges"].append({"sourceId": tail, "destId": head, "cost": cost})
    return data


BAD = {
    "a circle": (with_edge(30, 0), ("has a circle", "node 0", "drop an edge")),
    "backward to forward": (with_edge(99, 20), ("backward node 99 to the forward node 20",)),
    "two costs": (with_edge(10, 40, 2), ("edges out of node 10 have two costs, 1 and 2",)),
    "two costs in seconds": (
        {
            **chain(),
            "edges": [{**e, "cost": 1e-7 * (i + 1)} for i, e in enumerate(chain()["edges"])]
            + [{"sourceId": 10, "destId": 40, "cost": 1e-9}],
        },
        ("edges out of node 10 have two costs",),
    ),
    "an id twice": (edited(id=0), ("two nodes have the id 0",)),
    "no such id": (with_edge(10, 11), ("destId 11, which no node has",)),
    "no time": (edited(fpgaLatency=None), ("node 10 has no fpgaLatency",)),
    "a negative time": (edited(cpuLatency=-1), ("cpuLatency of node 10 is -1",)),
    "a text": (edited(size="big"), ("size of node 10 is 'big', not a number",)),
    "an infinite time": (edited(fpgaLatency=float("inf")), ("fpgaLatency of node 10",)),
    "a time beyond sums": (edited(cpuLatency=1e308), ("cpuLatency of node 10", "0 to 1E+24")),
    "bytes beyond sums": (edited(size=1e300), ("size of node 10", "0 to 1E+24")),
    "a flag": (edited(supportedOnFpga="yes"), ("supportedOnFpga of node 10 is 'yes'",)),
    "contained nodes": (edited(containedSubnodes=[]), ("node 10 has contained nodes",)),
    "no devices": (chain(maxFPGAs=0), ("no device to place on",)),
    "half a device": (chain(maxFPGAs=1.5), ("maxFPGAs of the file is 1.5",)),
    "no nodes": (chain(nodes=[], edges=[]), ("no nodes",)),
    "a list": ([], ("no JSON object",)),
    "no edges": ({k: v for k, v in chain().items() if k != "edges"}, ("no edges",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_graphs_are_refused(cli: Command, case: str) -> None:
    data, words = BAD[case]
    cli("place", written("graph.json", data)).assert_refused(2, "graph.json", *words)


def test_bad_files_are_refused(cli: Command) -> None:
    graph = written("graph.json", chain())
    cli("place", "absent.json").assert_refused(2, "absent.json", "no such file", "--graph")
    Path("text.json").write_text("not json")
    cli("place", "text.json").assert_refused(2, "text.json", "cannot be read")
    cli("place", graph, "--check", "absent.json").assert_refused(2, "absent.json")
    written("split.json", {"fpgas": [{"nodes": [5]}]})
    cli("place", graph, "--check", "split.json").assert_refused(2, "node 5", "does not have")
    written("split.json", {"fpgas": [{"nodes": [10, 0, 10]}]})
    cli("place", graph, "--check", "split.json").assert_refused(2, "fpgas lists node 10 twice")
    cli("place", graph, "--check", "split.json", "-o", "new.json").assert_refused(2, "--check")
    cli("place", graph, "-o", "no/folder/split.json").assert_refused(2, "no/folder")
    cli("place", graph, "--memory", "much").assert_refused(2, "'much' is not a size")
