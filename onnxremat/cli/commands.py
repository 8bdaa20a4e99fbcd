"""All commands, as one typer application; a command's module is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from onnxremat.cli.outputs import check_outputs
from onnxremat.errors import UsageError

# Command to the first paragraph of its help. The module has the command's name.
COMMANDS = {
    "explain": "Say what a model needs, when and why, and the smallest budgets, without planning.",
    "optimize": "Make a model keep a memory budget: IN.onnx OUT.onnx --budget 2GiB.",
    "differentiate": "Make one training step of a model, in standard ONNX operators.",
    "train": "Train: epochs over data, validation, checkpoints, export. Ctrl-C stops after a "
    "checkpoint.",
    "profile": "Measure seconds and bytes of every op on this machine.",
    "plan": "Decide what to store and what to recompute; write plan.json, for apply.",
    "place": "Place a graph on accelerators and CPUs: value, bound, and what each device is "
    "charged.",
    "apply": "Rewrite a model by a plan made earlier.",
    "verify": "Run both models: same outputs, planned order, predicted and measured peak, budget; "
    "over several devices also placement, and the bytes of each.",
    "run": "Run a model in stock onnxruntime and print its time and true peak.",
    "bench": "Time models in turn; medians and ratios to the first. Planned models run as "
    "planned, others under default options. One model planned for several devices alone: against "
    "each of them.",
    "inspect": "Show what a model or plan holds; ready-to-paste code for planned models.",
    "report": "Report on a planned model: figures; with -o report.html a page that explains the "
    "plan; with --matrices every timestep, as XEngine shows them.",
    "sweep": "Plan at several budgets, of a model or a graph file: overhead and bound against "
    "memory.",
    "compare": "Plan a model or a graph file with every planner: overhead, peak, time, bound.",
    "max-batch": "Find the largest batch that a plan keeps within the budget.",
    "set-batch": "Give a model that was exported with a fixed batch size another one, and check "
    "its rows.",
    "set-input": "Give inputs one value for good, so that branches and loops that follow from it "
    "are known.",
    "simulate": "Simulate a pipeline: how long its schedule takes, what is proven, what is alive.",
    "devices": "List the devices here; measure them: devices detect > my.toml; show a machine "
    "file.",
    "export-partitions": "Write the partitions of a model for programs in C, C++, C# or Java.",
    "doctor": "Check packages, onnxruntime's behaviour, solvers and licences.",
}


class OnDemand(TyperGroup):
    """Lists every command without loading any; loads the one that is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return (name, load(name), rest) if name in COMMANDS else (name, listed, rest)


def load(name: str) -> Any:
    """The command of a name, with its options."""
    module = import_module(f"onnxremat.cli.{name.replace('-', '_')}")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=getattr(module, "PARSER", None))(module.command)
    made = typer.main.get_command(alone)
    made.callback = _checked(made.callback)
    return made


def _checked(command: Any) -> Any:
    """A command that first looks at where it would write, and at what needs a run."""

    def run(**given: Any) -> Any:
        check_outputs(given)
        _check_runs(given)
        return command(**given)

    return run


def _check_runs(given: Mapping[str, Any]) -> None:
    """Raises:
    UsageError: an option that only runs of the model heed, and nothing is run.
    """
    for name in ("data", "fresh", "bench_seconds"):
        if given.get(name) and not given.get("measure", True):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is for measuring, and nothing is measured",
                hint=f"leave out {option}, or measure: --measure",
            )


app = typer.Typer(
    cls=OnDemand,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Run any ONNX model within a memory budget, on stock onnxruntime.",
)


def _listed() -> None:
    """What the list of commands shows; :class:`OnDemand` runs the command itself."""


for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(_listed)


def _version(shown: bool) -> None:
    if shown:
        from onnxremat.versions import versions

        typer.echo("\n".join(f"{name} {found}" for name, found in versions().items()))
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_version,
            is_eager=True,
            help="Versions: onnxremat, and what it runs on.",
        ),
    ] = False,
) -> None:
    """Run any ONNX model within a memory budget, on stock onnxruntime."""
