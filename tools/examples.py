"""Runs every example at full size, one after the other, and keeps what each said.

python tools/examples.py [NAME ...]     writes examples/output/NAME.txt

An example that fails keeps its former output, and ends this with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from onnxremat.device.host import processor_name, processors

ROOT = Path(__file__).resolve().parent.parent
NAMES = (
    "finetune_vision", "small_gpt", "segmentation", "two_devices", "two_ranks", "from_pytorch",
    "deploy_cpp", "deploy_csharp",
)  # fmt: skip


def processor() -> str:
    """Its name, and the cores this process may use."""
    cores = processors()
    return f"{processor_name()}, {cores} core{'' if cores == 1 else 's'}"


def run(name: str) -> bool:
    """Run one; whether it worked."""
    print(f"== {name}", flush=True)
    command = [sys.executable, "-m", f"examples.{name}"]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    print(ran.stdout, flush=True)
    if ran.returncode == 0:
        head = f"$ python -m examples.{name}      # {processor()}\n"
        target = ROOT / "examples" / "output" / f"{name}.txt"
        target.parent.mkdir(exist_ok=True)
        target.write_text(head + ran.stdout)
    return ran.returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="run examples at full size, and keep what they say"
    )
    parser.add_argument("name", nargs="*", help="all, where none is given")
    names = parser.parse_args().name
    if unknown := ", ".join(sorted({*names}.difference(NAMES))):
        parser.error(f"no example {unknown}; there are {', '.join(NAMES)}")
    failed = [name for name in names or NAMES if not run(name)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
