"""onnxremat report OUT.onnx [--matrices]: what a plan does, timestep by timestep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError
from onnxremat.report.suffix import check_suffix

if TYPE_CHECKING:
    from onnxremat.pipeline.planned import Planned
    from onnxremat.report.pages.elements import Frame


def command(
    source: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="A planned model, or a plan.json.", show_default=False),
    ],
    matrices: Annotated[
        bool,
        typer.Option(
            "--matrices",
            help="What is computed, stored and copied, and the bytes, per device and timestep.",
        ),
    ] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the matrices as .csv files to a folder.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write one page (.html) that explains the plan: memory over the step, what is in "
            "it at any moment, what was recomputed, what is proven. Needs no network.",
        ),
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option(
            "--sweep",
            help="With -o: the curve that sweep IN -o curve.json wrote, drawn on the page.",
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="The model that a plan.json was made for.")
    ] = None,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Report on a planned model: figures; with -o report.html a page that explains the plan; with
    --matrices every timestep, as XEngine shows them.

    A timestep ends with the first run of an op.
    """
    from onnxremat import api
    from onnxremat.report.matrices import as_facts, write_csv
    from onnxremat.report.matrices import matrices as drawn

    voice = Voice(as_json, quiet)
    if output:
        check_suffix(output, (".html",))
        api.check_paths(source, output)
    elif sweep:
        raise UsageError("--sweep is drawn on the page", hint="add -o report.html")
    planned = _read(source, model)
    facts: dict[str, Any] = dict(planned.facts)
    if matrices or csv:
        facts["matrices"] = as_facts(planned)
    written = write_csv(planned, csv) if csv else []
    if output:
        _page(source, model, sweep).write(output)
        written = [*written, output]
    if as_json:
        voice.result(facts)
    else:
        voice.table(_figures(planned))
        if matrices:
            voice.table(drawn(planned, voice.out.width))
    if written:
        voice.note("wrote " + ", ".join(str(path) for path in written))


def _read(source: Path, model: Path | None) -> Planned:
    """Raises:
    UsageError: no plan, or a plan by itself without its model.
    """
    from onnxremat import api
    from onnxremat.pipeline.planned import plan_of_model, read_planned

    if source.suffix != ".json":
        if model:
            raise UsageError("--model is for a plan.json", hint=f"onnxremat report {source}")
        return read_planned(source)
    plan = api.read_plan(source)
    if model is None:
        raise UsageError(
            "a plan by itself names ops, not what they read and write",
            hint=f"onnxremat report {source} --model IN.onnx",
        )
    return plan_of_model(plan, model)


def _page(source: Path, model: Path | None, sweep: Path | None) -> Frame:
    """The page of one session, or that of several devices.

    Raises:
        UsageError: a curve was given of which there is nothing to draw it beside.
    """
    from onnxremat import api
    from onnxremat.pipeline.planned import read_written
    from onnxremat.report.pages.carried import of_model, of_written
    from onnxremat.report.pages.curve_drawing import read_sweep
    from onnxremat.report.pages.devices_page import devices_page
    from onnxremat.report.pages.page import page
    from onnxremat.report.pages.spread import Spread

    swept = read_sweep(sweep) if sweep else None
    if model is not None:
        return page(of_model(api.read_plan(source), model), swept)
    written = read_written(source)
    if not written.several:
        return page(of_written(written, source.name), swept)
    if swept:
        raise UsageError(
            "a curve is of plans in one session, this plan is over several devices",
            hint="leave --sweep out",
        )
    return devices_page(Spread.read(source))


def _figures(planned: Planned) -> Any:
    from onnxremat.report.device_tables import device_table
    from onnxremat.report.tables import before_after

    facts = planned.facts
    if "devices" in facts:
        return device_table(facts)
    if facts:
        return before_after(facts)
    made = planned.plan.provenance
    return (
        f"{made.planner}, {made.status}: {len(planned.plan.sequence)} runs, "
        f"{planned.plan.recomputations} again; overhead {made.overhead:.2%}, bound "
        f"{made.bound_overhead:.2%} ({made.bound_kind})"
    )
