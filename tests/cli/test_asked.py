"""The command that a file was made by: what was given, and of paths the names alone."""

from __future__ import annotations

from onnxremat.cli.asked import asked
from onnxremat.cli.commands import load


def test_what_was_given_and_nothing_else() -> None:
    words = [
        "/some/where/in.onnx", "a b.onnx", "-b", "0.5x", "--train", "--no-measure", "-vv", "--pin",
        "/encoder/*=cuda:0", "--pin", "b=cpu", "--report", "/else/where/p.html",
    ]  # fmt: skip
    context = load("optimize").make_context("optimize", words)
    assert asked(context) == (
        "onnxremat optimize in.onnx 'a b.onnx' --budget 0.5x --pin '/encoder/*=cuda:0' --pin b=cpu "
        "--train --no-measure --report p.html --verbose --verbose"
    )
