"""onnxremat doctor: is everything here, and does it work?"""

from __future__ import annotations

from onnxremat.cli import args
from onnxremat.cli.console import Voice
from onnxremat.errors import MissingComponentError


def command(as_json: args.Json = False, quiet: args.Quiet = False) -> None:
    """Check packages, onnxruntime's behaviour, solvers and licences."""
    from onnxremat.pipeline.doctor import checkup

    voice = Voice(as_json, quiet)
    rows = checkup()
    if as_json:
        voice.result({"ok": all(r.ok or not r.needed for r in rows),
                      "checks": [vars(r) for r in rows]})  # fmt: skip
    else:
        for row in rows:
            mark = "ok  " if row.ok else "FAIL" if row.needed else "none"
            voice.out.print(f"{mark}  {row.name:28s} {row.text}")
    broken = [row.name for row in rows if row.needed and not row.ok]
    if broken:
        raise MissingComponentError(
            f"not working: {', '.join(broken)}", hint="pip install --upgrade onnxremat"
        )
