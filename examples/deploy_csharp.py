"""Deploy a planned model from C#: any onnxruntime opens it, with a few options set.

Runs ``deploy/Program.cs`` where the .NET SDK is; it takes onnxruntime's package from NuGet, or the
assembly that ``OnnxRuntimeAssembly`` names, with the library of the Python package.
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
from onnxremat.units import format_bytes

OPTIONS = """using Microsoft.ML.OnnxRuntime;

static class Planned
{{
    public static void Set(SessionOptions options)
    {{
        {lines}
    }}
}}
"""


def ran(dotnet: str, project: Path, words: list[str]) -> list[str]:
    """What the program prints, the two lines of it."""
    environment = dict(os.environ)
    library = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    if "OnnxRuntimeAssembly" in environment and library is not None:
        # NuGet's package brings the library; an assembly alone does not.
        (project / "libonnxruntime.so").symlink_to(library)
        paths = (str(project), environment.get("LD_LIBRARY_PATH", ""))
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run(
        [dotnet, "run", "--project", str(project), "--", *words],
        check=False, capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the program does not run:\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()[-2:]


@example
def main(small: bool, folder: Path, say: Said) -> None:
    model = deploy.planned(small, folder, say)
    lines = deploy.option_lines(model.code["C#"])
    say("the options in C#:")
    say("\n".join(f"    {line}" for line in lines))
    dotnet = shutil.which("dotnet")
    if dotnet is None:
        say.skip("the .NET SDK is not on this machine")
        return
    project = folder / "project"
    project.mkdir()
    for name in ("Program.cs", "deploy.csproj"):
        shutil.copy(deploy.HERE / name, project)
    (project / "Options.cs").write_text(OPTIONS.format(lines="\n        ".join(lines)))
    tiny = folder / "tiny.onnx"
    tiny.write_bytes(tiny_model())
    total, grew = ran(dotnet, project, [str(model.file), str(tiny)])
    deploy.compare(say, total, model.wanted)
    allowed = f"{format_bytes(model.budget)}, its budget, and the {format_bytes(SLACK)} of verify"
    say(f"the process grew by {format_bytes(int(grew))}, of {allowed}")


if __name__ == "__main__":
    main.run()
