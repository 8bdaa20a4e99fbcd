"""Deploy a planned model from C++: any onnxruntime opens it, with a few options set.

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


@example
def main(small: bool, folder: Path, say: Said) -> None:
    file, code, wanted = deploy.planned(small, folder, say)
    say("the options in C++:")
    say("\n".join(f"    {line}" for line in deploy.option_lines(code["C++"])))
    compiler, include = shutil.which("g++") or shutil.which("clang++"), headers()
    library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    if compiler is None or include is None or library is None:
        missing = HEADER if include is None else "a compiler" if compiler is None else "a library"
        say.skip(f"{missing} is not on this machine (set ONNXRUNTIME to an unpacked release)")
        return
    (folder / "options.inc").write_text("\n".join(deploy.option_lines(code["C++"])) + "\n")
    soname = folder / "libonnxruntime.so.1"
    soname.symlink_to(library)
    subprocess.run(
        [
            compiler, "-std=c++20", str(deploy.HERE / "main.cpp"), "-I", str(include),
            "-I", str(folder), str(soname), f"-Wl,-rpath,{folder}", "-o", str(folder / "deploy"),
        ],
        check=True,
    )  # fmt: skip
    ran = subprocess.run(
        [folder / "deploy", file], check=True, capture_output=True, text=True, timeout=600
    )
    deploy.compare(say, ran.stdout, wanted)


if __name__ == "__main__":
    main.run()
