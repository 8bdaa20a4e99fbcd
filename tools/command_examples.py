"""Runs the example of every command, and keeps what each said for its page.

python tools/command_examples.py [COMMAND ...]     writes docs/commands/COMMAND.txt

Examples run in order in one temporary folder, each with the files that those before it made. What
a terminal shows only while a command works ("- planning") is left out. One that fails keeps its
former output, and ends this with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.examples import processor  # noqa: E402

FOLDER = ROOT / "docs" / "commands"
BRANCHES = (
    "import onnx; onnx.save(onnx.parser.parse_model('"
    '<ir_version: 9, opset_import: [\\"\\" : 18]> g (float[4] x, bool smooth) => (float[4] y) '
    "{ y = If(smooth) <then_branch = t () => (float[4] p) { p = Tanh(x) }, "
    "else_branch = r () => (float[4] q) { q = Relu(x) }> }'), 'branches.onnx')"
)
# What makes the files that a command begins with, and is no command of ours.
BEFORE = {
    "explain": "python -m models unet net.onnx --batch 8 --size 32 --width 8\n"
    "onnxremat differentiate net.onnx step.onnx --optimizer adamw -q",
    "differentiate": "python -m models mlp small.onnx --layers 2",
    "train": "python tools/digits.py\n"
    "onnxremat differentiate digits/net.onnx first.onnx --optimizer adamw --dim batch=32 -q",
    "max-batch": "python -m models lenet open.onnx --symbolic-batch",
    "set-input": f'python -c "{BRANCHES}"',
    "export-partitions": "onnxremat optimize net.onnx two.onnx --devices cpu-2x1 "
    "--pin '/encoder*=cpu:0' --pin '/decoder*=cpu:1' --time-limit 5 -q",
    "place": "onnxremat place net.onnx --devices cpu-2x1 --graph graph.json -q",
}
EXAMPLES = {
    "explain": "explain step.onnx --budget 0.5x --time-limit 4",
    "differentiate": "differentiate small.onnx small-step.onnx --optimizer adamw",
    "optimize": "optimize step.onnx out.onnx --budget 0.5x --time-limit 30",
    "plan": "plan step.onnx -o plan.json --budget 0.5x --time-limit 30",
    "apply": "apply step.onnx plan.json again.onnx",
    "verify": "verify step.onnx out.onnx",
    "run": "run out.onnx",
    "bench": "bench step.onnx out.onnx --seconds 5",
    "inspect": "inspect out.onnx",
    "report": "report out.onnx -o report.html",
    "profile": "profile net.onnx --top 5",
    "sweep": "sweep step.onnx --points 5 --time-limit 20 -o curve.json",
    "compare": "compare step.onnx --budget 0.5x --time-limit 30",
    "max-batch": "max-batch open.onnx --train --budget 32MiB --max-overhead 20% --time-limit 2",
    "set-batch": "set-batch net.onnx one.onnx 1",
    "set-input": "set-input branches.onnx tanh.onnx smooth=true",
    "train": "train first.onnx --weights digits/net.onnx --data digits/train.npz "
    "--validate digits/test.npz --epochs 5 --rate 0.003 --export digits/all.onnx",
    "devices": "devices show cpu-2x1",
    "place": "place graph.json --time-limit 10",
    "simulate": "simulate --stages 4 --micro-batches 8 --forward 1 --backward 1 --weight 1",
    "export-partitions": "export-partitions two.onnx parts",
    "doctor": "doctor",
}


def run(line: str, folder: Path) -> tuple[int, str]:
    """Exit code of a line of a shell, and what a terminal would show at its end."""
    program, *rest = shlex.split(line)
    if program == "onnxremat":
        rest = ["-m", "onnxremat", *rest]
    elif rest[0].startswith("tools/"):
        rest[0] = str(ROOT / rest[0])
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    ran = subprocess.run(
        [sys.executable, *rest], cwd=folder, env=env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    shown = [row.rstrip() for row in ran.stdout.splitlines() if not row.startswith("- ")]
    return ran.returncode, "\n".join(shown)


def example(name: str, folder: Path, keep: bool) -> bool:
    """Run what a command begins with, and the command; whether all worked."""
    before = BEFORE.get(name, "").splitlines()
    text = [f"# {processor()}"]
    for line in [*before, f"onnxremat {EXAMPLES[name]}"]:
        print(f"$ {line}", flush=True)
        code, said = run(line, folder)
        if code:
            print(f"{said}\nexit code {code}", flush=True)
            return False
        text += [f"$ {line}", *(said.splitlines() if line not in before else ())]
    if str(folder) in "\n".join(text):
        print(f"{name}: names a folder of this machine", flush=True)
        return False
    if keep:
        (FOLDER / f"{name}.txt").write_text("\n".join(text) + "\n")
    return True


def main(asked: list[str]) -> int:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        failed = [
            name
            for name in EXAMPLES
            if not example(name, Path(temporary), not asked or name in asked)
        ]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="run the example of every command, and keep it")
    parser.add_argument("command", nargs="*", help="those to keep, all where none is given")
    commands = parser.parse_args().command
    if unknown := ", ".join(sorted({*commands} - EXAMPLES.keys())):
        parser.error(f"no example of {unknown}; there are {', '.join(EXAMPLES)}")
    sys.exit(main(commands))
