"""CPU seconds of ``onnxremat explain`` on every model, each in a process of its own.

python tools/explain_all.py [PATTERN ...] [--train] [--limit 5]

Models are those of models/ at their default size, and the training graphs of the studies beside the
checkout where they are there. With --train also a training step of each model. Ends with 1 where
one takes longer than the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT.parent / "shared" / "models"
sys.path.insert(0, str(ROOT))


def names() -> list[str]:
    """Of all models; those of the studies end in .onnx."""
    import models

    return [*models.SPECS, *(path.name for path in sorted(STUDIES.glob("*.onnx")))]


def files(name: str, folder: Path, train: bool) -> Iterator[Path]:
    """The file of a model, and of its training step."""
    import onnx

    import models

    if name.endswith(".onnx"):
        yield STUDIES / name
        return
    file = folder / f"{name}.onnx"
    onnx.save(models.build(name), file)
    yield file
    if train:
        import onnxremat

        step = folder / f"{name}-step.onnx"
        onnxremat.differentiate(file, step, settings=onnxremat.Training(optimizer="adamw"))
        yield step


def explained(file: Path) -> tuple[float, dict[str, Any]]:
    """CPU seconds of the command, start included, and what it said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "onnxremat", "explain", str(file), "--json", "--quiet"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, json.loads(ran.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--train", action="store_true", help="training steps too")
    parser.add_argument("--limit", type=float, default=5.0, help="CPU seconds")
    asked = parser.parse_args()
    slow = 0
    print("model                     ops   CPU seconds     peak MiB   smallest MiB, known")
    with tempfile.TemporaryDirectory() as temporary:
        for name in names():
            if not any(fnmatch(name, pattern) for pattern in asked.patterns):
                continue
            for file in files(name, Path(temporary), asked.train):
                took, facts = explained(file)
                over = took > asked.limit
                slow += over
                least = min(facts["ways"], key=lambda way: way["bytes"])
                print(
                    f"{file.stem:22s} {facts['ops']:6d} {took:10.2f}{'  !' if over else '   '}"
                    f"{facts['peak']['bytes'] / 2**20:12.1f} {least['bytes'] / 2**20:10.1f} "
                    f"{least['name']}, {least['known']}",
                    flush=True,
                )
    print(f"{slow} over {asked.limit:g} s")
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
