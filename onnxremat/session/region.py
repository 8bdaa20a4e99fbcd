"""The least arena that serves a model: found once, by a child process, and kept.

For sessions without the compiled allocator. Nothing of the search stays in this process, its
imports neither (:mod:`onnxremat.session.region_search`); what it finds is in the user's cache, by
content.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from onnxremat import plain_json
from onnxremat.cost.kept import cache_folder
from onnxremat.device.host import processor_kind
from onnxremat.errors import OnnxrematError
from onnxremat.graph.atomic import atomic
from onnxremat.graph.wire import read_light
from onnxremat.memory.arena import Region
from onnxremat.ort.session import Options, runtime_version

RULES = 4  # of the search: what other rules found is searched anew


def find_region(
    file: Path, options: Options, bound: Sequence[str] = (), without: str = ""
) -> Region | str:
    """The arena for a model file, or a sentence that says why there is none.

    Args:
        options: of the session.
        bound: outputs that the caller gives memory for.
        without: what is left out of the model, see :func:`onnxremat.graph.wire.read_light`: one
            block less and what fitted may fit no more.
    """
    request = {
        "model": str(file), "options": options.to_json(), "bound": sorted(bound),
        "without": without, "rules": RULES,
    }  # fmt: skip
    here = runtime_version(), processor_kind()  # kernels of another one take other workspace
    facts = (read_light(file).content, json.dumps(request).encode(), *map(str.encode, here))
    key = hashlib.sha256(b"\0".join(facts)).hexdigest()[:24]
    kept = cache_folder() / f"arena-{key}.json"
    try:
        return Region(**plain_json.loads(kept.read_text()))
    except (OSError, ValueError, TypeError):
        pass
    done = subprocess.run(
        [sys.executable, "-m", "onnxremat.session.region_search", json.dumps(request)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return f"no arena was found for it: {(done.stderr.splitlines() or ['no word'])[-1]}"
    found = json.loads(lines[-1])
    if "why" in found:
        return str(found["why"])
    region = Region(**found)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic(kept) as temporary:
            temporary.write_text(json.dumps(found))
    except (OSError, OnnxrematError):
        pass  # found again next time
    return region
