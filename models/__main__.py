"""Command line: ``python -m models NAME OUT.onnx [--batch 8 --size 64 ...]``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx

from models import SPECS, activation_bytes, build, parameter_count
from models.spec import Argument, Spec

MIB = 2**20
ACCOUNT = "seed", "symbolic_batch", "weights"  # arguments that change no size


def _add_argument(parser: argparse.ArgumentParser, name: str, default: Argument) -> None:
    flag = "--" + name.replace("_", "-")
    text = f"default: {default}"
    if isinstance(default, bool):
        action = argparse.BooleanOptionalAction
        parser.add_argument(flag, dest=name, action=action, default=default, help=text)
    else:
        parser.add_argument(flag, dest=name, type=type(default), default=default, help=text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models", description="Builds test models.")
    parser.add_argument("--list", action="store_true", help="list the models and their arguments")
    parser.add_argument("--table", action="store_true", help="print the README's table of sizes")
    models = parser.add_subparsers(dest="name", metavar="NAME", title="models")
    for spec in SPECS.values():
        model = models.add_parser(spec.name, help=spec.summary, description=spec.summary)
        model.add_argument("out", type=Path, help="file to write")
        for name, default in spec.defaults.items():
            _add_argument(model, name, default)
    return parser


def _arguments(spec: Spec) -> str:
    sizes = (f"{key}={value}" for key, value in spec.defaults.items() if key not in ACCOUNT)
    return ", ".join(sizes)


def _print_table() -> None:
    print("| model | arguments | nodes | parameters | store-all MiB | peak MiB |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for spec in SPECS.values():
        model = spec.build({})
        total, peak = activation_bytes(model)
        count = f"{parameter_count(model):,}" if "weights" in spec.defaults else "-"
        cells = (spec.name, _arguments(spec), str(len(model.graph.node)), count)
        print(f"| {' | '.join(cells)} | {total / MIB:.1f} | {peak / MIB:.1f} |")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = _parser()
    arguments = vars(parser.parse_args(argv))
    name, listing, table = (arguments.pop(key) for key in ("name", "list", "table"))
    if listing:
        for spec in SPECS.values():
            print(f"{spec.name}: {spec.summary} ({_arguments(spec)})")
        return 0
    if table:
        _print_table()
        return 0
    if name is None:
        parser.error("give a model's NAME and a file, or --list")
    out: Path = arguments.pop("out")
    try:
        model = build(name, **arguments)
        onnx.save(model, out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{out}: {len(model.graph.node)} nodes, {model.ByteSize()} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
