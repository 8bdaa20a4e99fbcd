"""Prints what was found for every net and exporter: ``python -m tests.zoo [names]``.

Exits 1 when something is off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch

from tests.zoo import MISSING, WHY_MISSING


def main(arguments: list[str] | None = None) -> int:
    """Print one line per net and exporter, and a summary."""
    asked = _asked(arguments)
    if MISSING:
        print(f"the zoo is not compared: {WHY_MISSING}")
        return 0 if asked.sample else 1
    from tests.zoo.comparison import compare
    from tests.zoo.export import cache_folder

    torch.set_num_threads(1)
    nets, exporters = _nets(asked), asked.exporter or _exporters()
    kept = tempfile.TemporaryDirectory(prefix="zoo-")
    folder = asked.cache or cache_folder(Path(kept.name))
    folder.mkdir(parents=True, exist_ok=True)
    if asked.files:
        from tests.zoo.held import table

        print(table(nets, exporters, folder))
        return 0
    if asked.runs:
        return _steadiness(asked, nets, exporters, folder)
    if asked.fresh:
        return _fresh(nets, exporters, folder)
    rows = []
    print(HEAD, flush=True)
    for net in nets:
        for exporter in exporters:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as temporary:
                row = compare(
                    net, exporter, folder, scratch=Path(temporary), threads=asked.threads,
                    optimise=not asked.no_optimise,
                )  # fmt: skip
            row.seconds = time.perf_counter() - start
            rows.append(row)
            print(line(row), flush=True)
            if asked.json:
                with asked.json.open("a") as file:
                    file.write(json.dumps({**asdict(row), "wrong": row.wrong()}) + "\n")
    return summary(rows)


def _asked(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="nets, all by default")
    parser.add_argument("--exporter", action="append", help="may be repeated; all by default")
    parser.add_argument(
        "--cache", type=Path, help="where exported files are kept; or ONNXREMAT_ZOO"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--no-optimise", action="store_true", help="leave out the smaller step")
    parser.add_argument("--sample", action="store_true", help="only the few nets of every test run")
    parser.add_argument("--files", action="store_true", help="only what the files hold")
    parser.add_argument("--fresh", action="store_true", help="only the nets as they are made")
    parser.add_argument("--part", default="1/1", help="2/5: the second of five parts of the nets")
    parser.add_argument("--runs", type=int, help="only run each step so often and compare bits")
    parser.add_argument("--json", type=Path, help="append every row to this file")
    return parser.parse_args(arguments)


def _steadiness(asked: argparse.Namespace, nets: list, exporters: list[str], folder: Path) -> int:
    """Bits of many runs of each step; 1 when any differ."""
    from tests.zoo.steady import line, steady

    found = []
    for net in nets:
        for exporter in exporters:
            found.append(steady(net, exporter, folder, asked.threads, asked.runs))
            print(line(found[-1]), flush=True)
    made = [each for each in found if not each.failed]
    changed = sum(any(each.differ.values()) for each in made)
    print(f"\n{len(made)} steps, {asked.runs} runs each with {asked.threads} threads: "
          f"{changed} with other bits; {len(found) - len(made)} without a step")  # fmt: skip
    return int(changed > 0)


def _fresh(nets: list, exporters: list[str], folder: Path) -> int:
    """What becomes of the parameters of nets as they are made; 1 when any is silently wrong."""
    from tests.zoo.export import NotExportedError
    from tests.zoo.fresh import fresh, line

    print(f"{'net':20} {'exporter':13} {'right':>5} {'told':>4} {'silent':>6} {'loss':>7}")
    wrong = 0
    for net in nets:
        for exporter in exporters:
            try:
                found = fresh(net, exporter, folder)
                print(line(net.name, exporter, found), flush=True)
                wrong += bool(found.silent)
            except NotExportedError as error:
                print(f"{net.name:20} {exporter:13} not exported: {error}", flush=True)
            except Exception as error:  # whatever goes wrong is what the zoo is to find
                wrong += 1
                print(f"{net.name:20} {exporter:13} OFF failed: {error}", flush=True)
    return int(wrong > 0)


def _nets(asked: argparse.Namespace) -> list:
    from tests.zoo.architectures import ARCHITECTURES

    unknown = [name for name in asked.names if name not in ARCHITECTURES]
    if unknown:
        sys.exit(f"no such net: {', '.join(unknown)}; there are {', '.join(ARCHITECTURES)}")
    nets = [ARCHITECTURES[name] for name in asked.names or ARCHITECTURES]
    part, parts = map(int, asked.part.split("/"))
    return [net for net in nets if net.sample or not asked.sample][part - 1 :: parts]


def _exporters() -> list[str]:
    from tests.zoo.export import EXPORTERS

    return list(EXPORTERS)


HEAD = (
    f"{'net':20} {'exporter':13} {'whole':>5} {'part':>4} {'none':>4} {'twice':>5} {'other':>5} "
    f"{'gradient':>8} {'':5} {'losses':>7} {'values':>7} {'':5} {'export':>7} "
    f"{'budget':>6} {'then':>7} {'s':>4}"
)


def line(row) -> str:  # type: ignore[no-untyped-def]
    """One row of the table, and what is wrong below it."""
    head = f"{row.net:20} {row.exporter:13} "
    if row.refused:
        return f"{head}not exported: {row.refused}"
    figures = (
        f"{row.trained:5} {len(row.partly):4} {len(row.missing):4} {len(row.doubled):5} "
        f"{len(row.foreign):5} {row.gradient:8.1e} {row.verdict:5} {row.stepped:7.0e} "
        f"{row.moved:7.0e} {row.drift:5} {row.exported:7.0e} {row.budget:5.2f}x "
        f"{row.planned:7.0e} {row.seconds:4.0f}"
    )
    altered = [f"    (PyTorch's exporter: {row.altered})"] if row.altered else []
    return "\n".join([head + figures, *altered, *(f"    OFF {text}" for text in row.wrong())])


def summary(rows: list) -> int:
    """How many are right, by exporter; 1 when any is not."""
    kinds: dict[str, Counter[str]] = {}
    for row in rows:
        kind = "not exported" if row.refused else "off" if row.wrong() else "right"
        if row.altered and kind == "right":
            kind = "altered by PyTorch's exporter"
        kinds.setdefault(row.exporter, Counter())[kind] += 1
    print()
    for exporter, count in kinds.items():
        print(f"{exporter:13} " + ", ".join(f"{n} {kind}" for kind, n in sorted(count.items())))
    return int(any(row.wrong() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
