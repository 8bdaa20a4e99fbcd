"""Deploy a planned model from C#: any onnxruntime opens it, with a few options set.

Runs ``deploy/Program.cs`` where the .NET SDK is; it takes onnxruntime's package from NuGet.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from examples import deploy
from examples.run import Said, example

OPTIONS = """using Microsoft.ML.OnnxRuntime;

static class Planned
{{
    public static void Set(SessionOptions options)
    {{
        {lines}
    }}
}}
"""


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
    ran = subprocess.run(
        [dotnet, "run", "--project", str(project), "--", str(model.file)],
        check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    deploy.compare(say, ran.stdout.splitlines()[-1], model.wanted)


if __name__ == "__main__":
    main.run()
