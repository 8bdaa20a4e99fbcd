"""Cases that once had a wrong answer, kept as files: archives of what the case wrote and ran."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from tests.fuzz.case import Case

FOLDER = Path(__file__).parent / "found"


def keep(case: Case, why: str, path: Path) -> None:
    """Write a case and what was wrong with it."""
    about = {
        "kind": case.kind, "command": case.command, "same": case.same, "allowed": case.allowed,
        "why": why,
    }  # fmt: skip
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("case.json", json.dumps(about, indent=1))
        for name, content in case.files.items():
            archive.writestr(f"files/{name}", content)


def kept(path: Path) -> Case:
    """The case of :func:`keep`'s file."""
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("case.json"))
        files = {
            name.removeprefix("files/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("files/")
        }
    same = tuple(about["same"]) if about["same"] else None
    allowed = tuple(about.get("allowed", ()))
    return Case(about["kind"], files, tuple(about["command"]), same, allowed)
