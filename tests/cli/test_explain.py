"""onnxremat explain: the page, the object, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command, listing
from tests.toolbox import parse


def test_the_page_says_peak_largest_force_budgets_and_commands(
    cli: Command, chain: Path, folder: Path
) -> None:
    said = cli("explain", chain, "--target", "none")
    assert said.code == 0, said.err
    for words in ("peak", "largest then", "what forces it", "smallest budgets", "what to run"):
        assert words in said.out
    assert "at step" in said.out
    assert "recomputing" in said.out
    assert f"onnxremat optimize {chain} --target none OUT.onnx --budget" in said.out
    assert listing() == []


def test_the_object_agrees_with_itself(cli: Command, chain: Path) -> None:
    facts = cli("explain", chain, "--json", "--quiet").facts
    peak = facts["peak"]
    assert peak["bytes"] == peak["weights"] + peak["live"] + peak["scratch"]
    assert peak["holders"][0]["producer"]
    assert facts["budget"] is None
    assert facts["peak_measured_bytes"] is None
    assert all(way["proven"] == (way["bytes"] <= way["lower"]) for way in facts["ways"])
    assert facts["least"]["bytes"] <= min(way["bytes"] for way in facts["ways"])


def test_commands_that_are_named_work(cli: Command, chain: Path, tmp_path: Path) -> None:
    """The budget of the largest saving that a moment finds is kept by a plan."""
    facts = cli("explain", chain, "--json", "--quiet").facts
    command = next(c for c in facts["commands"] if "--budget min" not in c)
    words = command.replace("OUT.onnx", str(tmp_path / "out.onnx")).split()[1:]
    done = cli(*words, "--quiet", "--no-measure", "--work", "300")
    assert done.code == 0, done.err


def test_a_budget_that_none_can_keep_ends_with_3(cli: Command, chain: Path) -> None:
    said = cli("explain", chain, "--budget", "2KiB")
    assert said.code == 3
    assert "what forces it" in said.out
    assert "proven" in said.err
    assert "fits 2.00 KiB (2048 B)" in said.err  # less than what is beside weights and values
    assert "--budget" in said.err
    kept = cli("explain", chain, "--budget", "1GiB", "--json", "--quiet")
    assert kept.code == 0
    assert kept.facts["budget"]["keeps"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no.onnx",), "no.onnx"),
        (("CHAIN", "--budget", "much"), "not understood"),
        (("CHAIN", "--budget", "cuda:0=1GiB"), "devices"),
        (("CHAIN", "--target", "gpu"), "unknown target"),
        (("CHAIN", "--dim", "batch"), "not understood"),
    ],
)
def test_what_is_wrong_is_refused(
    cli: Command, chain: Path, arguments: tuple[str, ...], words: str
) -> None:
    cli("explain", *(chain if a == "CHAIN" else a for a in arguments)).assert_refused(2, words)


def test_a_page_is_written_of_a_model_and_of_a_plan(
    cli: Command, chain: Path, folder: Path
) -> None:
    budget = ("--budget", "0.7x", "--no-measure", "--work", "300", "--quiet", "--target", "none")
    assert cli("optimize", chain, "out.onnx", *budget).code == 0
    said = cli("report", "out.onnx", "-o", "page.html", "--quiet")
    assert said.code == 0, said.err
    assert "where the memory goes" in Path("page.html").read_text()
    assert "onnxremat report out.onnx" in cli("explain", "out.onnx").err
    assert "onnxremat report" not in cli("explain", chain).err
    assert cli("plan", chain, "-o", "plan.json", *budget).code == 0
    said = cli("report", "plan.json", "--model", chain, "-o", "plan.html", "--quiet")
    assert said.code == 0, said.err
    assert "nothing was measured" in Path("plan.html").read_text()


def test_a_page_of_a_plan_with_the_batch_in_parts(cli: Command, folder: Path) -> None:
    """What is computed in parts is checked by a run; no option is asked for that is not there."""
    body = "a = Sin(x) b = Cos(a) c = Exp(b) y = Add(c, a)"
    Path("in.onnx").write_bytes(
        parse(f"g (float[4, 64] x) => (float[4, 64] y) {{ {body} }}").SerializeToString()
    )
    asked = ("--budget", "0.9x", "--split-batch", "2", "--work", "100", "--quiet")
    said = cli("plan", "in.onnx", "-o", "plan.json", *asked)
    assert said.code == 0, said.err
    said = cli("report", "plan.json", "--model", "in.onnx", "-o", "page.html", "--quiet")
    assert said.code == 0, said.err
    assert "where the memory goes" in Path("page.html").read_text()


def test_a_page_that_cannot_be_written_is_refused(cli: Command, chain: Path, folder: Path) -> None:
    cli("report", chain, "-o", "page.pdf").assert_refused(2, ".html")
    cli("report", chain, "-o", "no/page.html").assert_refused(2, "folder")
    cli("report", chain, "-o", "page.html").assert_refused(2, "carries no plan")
    assert listing() == []
