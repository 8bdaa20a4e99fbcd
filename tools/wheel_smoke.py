"""The wheel in a bare environment: what it takes, and that it works.

python tools/wheel_smoke.py dist/onnxremat-*.whl [--extras cpu ...]

For the wheel alone and for each choice of extras: a new virtual environment, seconds and bytes of
the installation, and a model of four operators through the command line.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

MODEL = """
import onnx
onnx.save(onnx.parser.parse_model('''<ir_version: 9, opset_import: ["" : 18]>
g (float[64, 256] x) => (float[64, 256] y) {a = Sin(x) b = Cos(a) c = Mul(b, a) y = Add(c, x)}'''),
"net.onnx")
"""


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def run(*command: object, folder: Path, code: int = 0) -> str:
    """What a command says; ends this program where its exit code is another."""
    words = [str(word) for word in command]
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    if ran.returncode != code:
        sys.exit(f"{' '.join(words)} ended with {ran.returncode}, not {code}:\n{said}")
    return said


def check(wheel: Path, extras: str, folder: Path) -> None:
    """Install and use it."""
    place = folder / (extras or "bare").replace(",", "-")
    venv.create(place, with_pip=True)
    empty, begin = size(place), time.perf_counter()
    python, command = place / "bin" / "python", place / "bin" / "onnxremat"
    wanted = f"{wheel}[{extras}]" if extras else str(wheel)
    run(python, "-m", "pip", "install", "--quiet", wanted, folder=place)
    took = time.perf_counter() - begin
    print(f"{extras or 'nothing'}: {(size(place) - empty) / 2**20:.0f} MiB in {took:.0f} s")
    names = run(python, "-m", "pip", "list", "--format=freeze", folder=place).split()
    cuda = [name for name in names if name.startswith("nvidia-")]
    print(f"  {len(names)} packages; CUDA libraries: {', '.join(cuda) or 'none'}")
    run(command, "--version", folder=place)
    run(python, "-c", MODEL, folder=place)
    run(command, "explain", "net.onnx", folder=place)
    run(
        command, "optimize", "net.onnx", "out.onnx", "--budget", "1x", "--bench-seconds", 0,
        "--target", "none", "--report", "report.html", "--quiet", folder=place,
    )  # fmt: skip
    assert "<svg" in (place / "report.html").read_text()
    run(
        command, "sweep", "net.onnx", "-o", "curve.json", "--points", 2, "--time-limit", 1,
        folder=place,
    )  # fmt: skip
    run(command, "report", "out.onnx", "--sweep", "curve.json", "-o", "more.html", folder=place)
    print("  explain, optimize, sweep, report: fine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extras", nargs="*", default=[], help="each a list: cpu,plot")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for extras in ("", *asked.extras):
            check(asked.wheel.absolute(), extras, Path(folder))


if __name__ == "__main__":
    main()
