"""onnxremat verify ORIGINAL RESULT"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxremat import api
from onnxremat.cli import args, several
from onnxremat.cli.console import Voice, size
from onnxremat.errors import OverBudgetError, VerificationError

NAME = "verify"


def command(
    original: args.Model,
    result: Annotated[Path, typer.Argument(help="Model that onnxremat wrote.")],
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help="Instead of the plan's own.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sets of inputs to compare on.")] = 2,
    shape: args.Shape = None,
    dim: args.Dim = None,
    seed: args.Seed = 0,
    threads: args.Threads = 0,
    data: args.Data = None,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Run both models: same outputs, planned order, predicted and measured peak, budget."""
    voice = Voice(as_json, quiet)
    settings = args.make_settings(shape, dim, "portable", threads, seed, data, True)
    if several.is_deployment(result):
        with voice.working():
            voice.say("verifying")
            several.verify(voice, original, result, settings)
        return
    with voice.working():
        voice.say("verifying")
        found = api.verify(original, result, settings=settings, seeds=seeds, budget=budget)
    for check in found.checks:
        mark = "PASSED" if check.ok else "FAILED"
        voice.note(f"{mark}  {check.name}: {check.text}")
    tuned, plain = found.tuned, found.default
    voice.note(
        f"peak {size(tuned.peak)} (arena holds {size(tuned.arena_bytes)}) with the planned "
        f"options; {size(plain.peak)} (arena {size(plain.arena_bytes)}) with default options"
    )
    rise = found.resident
    if rise["planned"] is not None:
        voice.note(
            f"a fresh process rises by {size(rise['loaded'])} through onnxremat.load, "
            f"{size(rise['planned'])} in a plain session with the planned options, "
            f"{size(rise['default'])} with default options"
        )
    if as_json:
        voice.result(_facts(found))
    failed = [check for check in found.checks if not check.ok]
    if any(check.name == "measured peak within budget" for check in failed):
        raise OverBudgetError("the measured peak misses the budget", why=failed[-1].text)
    if failed:
        raise VerificationError(
            f"{result} does not pass", why="; ".join(f"{c.name}: {c.text}" for c in failed)
        )


def _facts(found: api.Verification) -> dict[str, object]:
    return {
        "ok": found.ok,
        "checks": [{"name": c.name, "ok": c.ok, "text": c.text} for c in found.checks],
        "peak_measured_bytes": found.tuned.peak,
        "peak_predicted_bytes": found.facts.get("peak_predicted_bytes"),
        "peak_default_options_bytes": found.default.peak,
        "resident_bytes": found.resident,
        "arena_bytes": found.tuned.arena_bytes,
        "arena_default_options_bytes": found.default.arena_bytes,
    }
