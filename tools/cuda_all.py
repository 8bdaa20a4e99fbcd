"""Everything that is claimed of CUDA, run and measured on a GPU: `make bench-cuda`.

    python tools/cuda_all.py --out bench-cuda --minutes 20
    python tools/cuda_all.py --only 'step*' --minutes 5
    python tools/cuda_all.py --out bench-cuda --resume      # rows that are not done yet
    python tools/cuda_all.py --provider cpu --tiny          # the same code at toy size, no GPU

Each row is a process of its own with a time limit; what fails is written down and the next one
goes on. Rows come in the order of their worth: what does not fit into ``--minutes`` any more is
left out, from the end. Every row is appended to ``OUT/rows.jsonl`` as soon as it is done, so that a
machine that goes away takes nothing with it; ``OUT/report.md`` is written anew after each.

Needed: Linux, an NVIDIA driver, `onnxruntime-gpu[cuda,cudnn]` of the version in pyproject.toml (it
is built for CUDA 13), and for the rows ``torch-*`` a PyTorch for CUDA 13, whose CUDA libraries
onnxruntime then uses too, and Triton.

On a machine without a network that takes only tens of MiB at a time: tools/cuda_pack.py makes two
parts of some 50 and 18 MiB of what has to be there beside such a PyTorch. Take the first there,
then the second with this folder, and where they lie

    cat part0 part1 | tar -xJ -C SITE; export PYTHONPATH=SITE; python tools/cuda_all.py --minutes 9

and again with ``--resume`` as long as there is time. The row ``compiled`` takes minutes on a new
machine: Numba compiles the search for its processor.

Exit code 8 where CUDA does not start, 1 when a row failed, else 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onnxremat.device.host import processor_name
from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.errors import MissingComponentError, OnnxrematError

ROWS = Path(__file__).resolve().parent / "cuda_rows.py"
FIVE = ("resnet50", "bert", "vit", "gpt2", "unet")
OTHERS = (0.65, 0.8, 0.4, 0.3)  # shares tried beside a half
BOTH = {"others": OTHERS, "ways": ("both",)}
TINY_SECONDS = 120
WORDS = 4000  # letters kept of what a failed row has said


@dataclass(frozen=True)
class Row:
    """One thing to run.

    Attributes:
        what: a kind of row of cuda_rows.py.
        about: which claim it is for.
        seconds: that it is thought to take; twice that ends it.
        quick: it is among the rows of ``--quick``.
    """

    name: str
    what: str
    about: str
    seconds: int
    asked: dict[str, Any] = field(default_factory=dict)
    quick: bool = False


@dataclass
class Done:
    """What became of a row: ``ok``, ``failed``, ``out of time`` or ``left out``."""

    row: str
    about: str
    status: str
    seconds: float = 0.0
    found: dict[str, Any] = field(default_factory=dict)
    why: str = ""


def rows() -> list[Row]:
    """All rows, the most valuable first."""
    return [
        Row("starts", "starts", "CUDA starts, and its bytes are counted", 15, quick=True),
        Row("trainer-resnet18", "trainer", "training through the Trainer", 40,
            {"net": "resnet18"}, quick=True),
        Row("compiled", "compiled", "the search is compiled", 150, quick=True),
        Row("left-over", "left_over", "what CUDA leaves to the processor", 30,
            {"nets": FIVE}, quick=True),
        Row("step-resnet50", "step", "half the peak, as predicted, at a hard limit; MAGIS's table; "
            "recompute, swap, both", 150,
            {"net": "resnet50", "others": OTHERS, "ways": ("swap", "both")}, quick=True),
        Row("step-bert", "step", "", 150, {"net": "bert", **BOTH}),
        Row("step-vit", "step", "", 150, {"net": "vit", "others": OTHERS}),
        Row("step-unet", "step", "", 150, {"net": "unet", **BOTH}),
        Row("step-gpt2", "step", "", 150, {"net": "gpt2", "others": OTHERS}),
        Row("saved-resnet18", "saved", "a planned step written, loaded and trained with", 50,
            {"net": "resnet18"}),
        *_torch("resnet50"),
        Row("streams-densenet121", "streams", "weight gradients on a second stream", 60,
            {"net": "densenet121"}),
        Row("graphs-resnet50", "graphs", "CUDA graphs", 40, {"net": "resnet50"}),
        Row("one-session-resnet50", "one_session", "assignment by name in one session", 40,
            {"net": "resnet50"}),
        *_torch("bert"),
        Row("xengine-resnet18", "xengine", "XEngine's table", 90, {"net": "resnet18"}),
        *(Row(f"infer-{net}", "step", "the same of inferences", 45, {"net": net, "train": False})
          for net in FIVE),
        Row("streams-mobilenetv2", "streams", "", 50, {"net": "mobilenetv2"}),
        *_torch("vit"),
        *(Row(f"xengine-{net}", "xengine", "", 90, {"net": net})
          for net in ("vgg16", "inception", "resnet34", "vgg19")),
        Row("detected", "detected", "devices detect", 20),
    ]  # fmt: skip


def _torch(net: str) -> list[Row]:
    """The ways of PyTorch on the same GPU."""
    ways = {"eager": 25, "checkpoint": 25, "compile": 75, "budget": 75}
    return [
        Row(f"torch-{net}-{way}", "torch", "PyTorch on the same GPU", seconds,
            {"net": net, "way": way})
        for way, seconds in ways.items()
    ]  # fmt: skip


def chosen(every: Sequence[Row], only: Sequence[str], *, quick: bool) -> list[Row]:
    """Those whose names match a pattern, or all.

    Raises:
        SystemExit: a pattern matches none.
    """
    for pattern in only:
        if not any(fnmatchcase(row.name, pattern) for row in every):
            raise SystemExit(f"--only {pattern} matches no row; --list shows them")
    found = [row for row in every if not only or any(fnmatchcase(row.name, p) for p in only)]
    return [row for row in found if row.quick or not quick]


class Running:
    """A row in a process of its own, which is ended with all that it has started."""

    def __init__(self, row: Row, asked: dict[str, Any], limit: float) -> None:
        self.row, self.limit, self.begin = row, limit, time.monotonic()
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        given = {"what": row.what, "limit": limit, **asked, **row.asked}
        self.child = subprocess.Popen(
            [sys.executable, str(ROWS), json.dumps(given)],
            stdout=self.out, stderr=self.err, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": _path()},
        )  # fmt: skip

    def done(self) -> Done | None:
        """What became of it; None while it runs."""
        took, row = time.monotonic() - self.begin, self.row
        if self.child.poll() is None:
            if took < self.limit:
                return None
            self.end()
            why = f"{self.limit:.0f} s\n{self._last_words()}"
            return Done(row.name, row.about, "out of time", took, why=why)
        self.out.seek(0)
        lines = [line for line in self.out if line.startswith("{")]
        if self.child.returncode or not lines:
            why = f"ended with {self.child.returncode}\n{self._last_words()}"
            return Done(row.name, row.about, "failed", took, why=why)
        return Done(row.name, row.about, "ok", took, json.loads(lines[-1]))

    def _last_words(self) -> str:
        self.err.seek(0)
        return self.err.read().strip()[-WORDS:]

    def end(self) -> None:
        """Now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


def _path() -> str:
    here = str(ROWS.parent.parent)
    return os.pathsep.join(
        dict.fromkeys([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    )


class Book:
    """What is known so far, on disk at any moment."""

    def __init__(self, folder: Path, head: dict[str, Any]) -> None:
        self.folder, self.head, self.done = folder, head, list[Done]()
        folder.mkdir(parents=True, exist_ok=True)
        self._append({"began": head})

    def add(self, done: Done) -> None:
        """Keep a row."""
        self.done.append(done)
        self._append(asdict(done))
        (self.folder / "report.md").write_text(report(self.head, self.done))
        text = shown(done)
        print(f"{done.row:<28}{done.status:<12}{done.seconds:6.1f} s  {text}", flush=True)

    def _append(self, line: dict[str, Any]) -> None:
        with (self.folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def finished(path: Path) -> set[str]:
    """Names of the rows that are done, by an earlier run; a line cut short counts for nothing."""
    found = set()
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("status") == "ok":
            found.add(row["row"])
    return found


def report(head: dict[str, Any], done: Sequence[Done]) -> str:
    """All of it as Markdown."""
    lines = ["# CUDA, measured", "", *(f"- {key}: {value}" for key, value in head.items()), "",
             "| row | status | seconds | found |", "|---|---|---:|---|"]  # fmt: skip
    for one in done:
        text = shown(one).replace("|", "/")
        lines.append(f"| {one.row} | {one.status} | {one.seconds:.0f} | {text} |")
    return "\n".join(lines) + "\n"


def shown(one: Done) -> str:
    """What became of a row in a line; why it failed, by the last line of what it said."""
    first, *more = one.why.splitlines() or [brief(one.found)]
    return " ... ".join([first, *more[-1:]])


def brief(found: dict[str, Any], within: str = "") -> str:
    """Figures in a line."""
    parts = []
    for key, value in found.items():
        if isinstance(value, dict):
            parts.append(brief(value, f"{within}{key}."))
        elif isinstance(value, float):
            parts.append(f"{within}{key} {value:.4g}")
        elif not isinstance(value, list) or len(value) < 6:
            parts.append(f"{within}{key} {value}")
    return ", ".join(part for part in parts if part)


def head(provider: str, *, tiny: bool) -> dict[str, Any]:
    """Date, machine and versions."""
    import numpy
    import onnxruntime
    from cuda_plans import gpu_facts

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), **gpu_facts(),
        "provider": provider, "toy size": tiny,
        "processor": processor_name(),
        "cores": os.cpu_count(), "python": sys.version.split()[0],
        "onnxruntime": onnxruntime.__version__, "CUDA of onnxruntime": onnxruntime.cuda_version,
        "numpy": numpy.__version__,
    }  # fmt: skip


def all_rows(picked: Sequence[Row], book: Book, minutes: float, jobs: int, **asked: Any) -> bool:
    """Run what fits into the time, so many rows at a time; whether nothing failed."""
    end = time.monotonic() + 60 * minutes
    waiting, running = deque(picked), list[Running]()
    if jobs > 1:
        asked["lock"] = str(book.folder / "gpu.lock")
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                row, left = waiting.popleft(), end - time.monotonic()
                # Side by side, rows wait for each other: only the whole has an end.
                limit = TINY_SECONDS if asked["tiny"] else 2 * row.seconds if jobs == 1 else left
                if left < (1 if asked["tiny"] else row.seconds):
                    why = f"{max(0.0, left):.0f} s were left"
                    book.add(Done(row.name, row.about, "left out", why=why))
                else:
                    running.append(Running(row, asked, min(limit, left)))
            time.sleep(0.05)
            for one, done in [(one, one.done()) for one in running]:
                if done is not None:
                    running.remove(one)
                    book.add(done)
    finally:
        for one in running:
            one.end()
    return all(one.status in ("ok", "left out") for one in book.done)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="names of rows")
    parser.add_argument("--quick", action="store_true", help="the first rows alone")
    parser.add_argument("--list", action="store_true", help="show the rows and end")
    parser.add_argument("--minutes", type=float, default=20.0, help="end within so many")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time; they plan side by side"
                        " and take turns on the GPU")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("bench-cuda"))
    parser.add_argument("--resume", action="store_true", help="leave out rows that OUT has as ok")
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy nets")
    given = parser.parse_args()
    picked = chosen(rows(), given.only, quick=given.quick)
    if given.list:
        for row in picked:
            print(f"{row.name:<24}{row.seconds:>4} s  {row.about}")
        return 0
    if given.resume:
        ready = finished(given.out / "rows.jsonl")
        picked = [row for row in picked if row.name not in ready]
    if given.minutes <= 0:
        parser.error("--minutes has to be above 0")
    if given.jobs < 1:
        parser.error("--jobs has to be 1 or more")
    if given.provider == "cuda":
        from onnxremat.ort.providers import require

        try:
            require(Device("cuda:0", PROVIDERS["cuda"]))
        except MissingComponentError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    try:
        book = Book(given.out, head(given.provider, tiny=given.tiny))
    except OSError as error:
        parser.error(f"--out {given.out} cannot be written: {error}")
    asked = {"provider": given.provider, "tiny": given.tiny}
    fine = all_rows(picked, book, given.minutes, given.jobs, **asked)
    print(f"\n{given.out / 'report.md'}, {given.out / 'rows.jsonl'}")
    return 0 if fine else OnnxrematError.exit_code


if __name__ == "__main__":
    sys.exit(main())
