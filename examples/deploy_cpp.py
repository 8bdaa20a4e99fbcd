"""Deploy a planned model from C++: any onnxruntime opens it, and it keeps its budget.

Compiles ``deploy/main.cpp`` where a compiler and onnxruntime's headers are (in
``ONNXRUNTIME/include``, or where the system has them), and links the library of the Python package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import onnxruntime

from examples import deploy
from examples.run import Said, example
from onnxremat.ort.providers import tiny_model
from onnxremat.session.process import SLACK
from onnxremat.session.resident import small_stack
from onnxremat.units import format_bytes

HEADER = "onnxruntime_cxx_api.h"
PLACES = (
    *(f"{os.environ[name]}/include" for name in ("ONNXRUNTIME",) if name in os.environ),
    "/usr/include", "/usr/include/onnxruntime", "/usr/local/include",
    "/usr/local/include/onnxruntime", "/usr/include/onnxruntime/core/session",
    "/opt/homebrew/include/onnxruntime",
)  # fmt: skip


def headers() -> Path | None:
    """The folder of onnxruntime's headers."""
    return next((Path(place) for place in PLACES if Path(place, HEADER).is_file()), None)


def built(code: str, include: Path, library: Path, compiler: str, folder: Path) -> Path:
    """The program, around the code that opens the model."""
    (folder / "tiny.onnx").write_bytes(tiny_model())
    (folder / "session.inc").write_text(code + "\n")
    soname, program = folder / "libonnxruntime.so.1", folder / "deploy"
    soname.symlink_to(library)
    subprocess.run(
        [
            compiler, "-std=c++17", "-Wall", str(deploy.HERE / "main.cpp"), "-o", str(program),
            "-isystem", str(include), "-I", str(folder), str(soname), f"-Wl,-rpath,{folder}",
        ],
        check=True,
    )  # fmt: skip
    return program


def ran(program: Path, room: int) -> subprocess.CompletedProcess[str]:
    """A run that may take so many bytes."""
    return subprocess.run(
        [program, str(room), program.with_name("tiny.onnx")], capture_output=True, text=True,
        timeout=600, check=False, preexec_fn=small_stack,
    )  # fmt: skip


@example
def main(small: bool, folder: Path, say: Said) -> None:
    model = deploy.planned(small, folder, say)
    say("the code in C++:")
    shown = model.code["C++"].replace(str(model.file), model.file.name)
    say("\n".join(f"    {line}" for line in shown.splitlines()))
    compiler, include = shutil.which("g++") or shutil.which("clang++"), headers()
    library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    if compiler is None or include is None or library is None:
        missing = HEADER if include is None else "a compiler" if compiler is None else "a library"
        say.skip(f"{missing} is not on this machine (set ONNXRUNTIME to an unpacked release)")
        return
    program = built(model.code["C++"], include, library, compiler, folder)
    done = ran(program, model.budget + SLACK)
    if done.returncode:
        raise SystemExit(f"it does not run within its budget: {done.stderr}")
    deploy.compare(say, done.stdout, model.wanted)
    half = ran(program, model.budget // 2)
    proved = "half of it is too little" if half.returncode else "no limit acts on this system"
    kept = f"{format_bytes(model.budget)}, its budget, and the {format_bytes(SLACK)} of verify"
    say(f"it runs within {kept}; {proved}")


if __name__ == "__main__":
    main.run()
