"""What onnxruntime keeps of a graph, measured and fitted: `make bench-structures`.

    python tools/bench_structures.py FILE.onnx ... [--fit]

Each file is opened in a fresh process, as `onnxremat.load` opens it (big weights stay in the file,
notes of the exporter are left out, no weights are packed), and what the C library's heap gained is
set beside what onnxremat/session/structures.py says. ``--fit`` prints the constants that fit these
files best (non-negative least squares of relative errors); it wants thirty files or more of many
kinds: planned files, their originals, training steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

KIB = 1024
PARTS = ("session", "OUTPUT", "INPUT", "ATTRIBUTE", "ELEMENT", "WEIGHT", "END", "LETTER")


def measured(file: Path) -> dict[str, Any]:
    """In this process: bytes of the heap, bytes of the model of them, its parts."""
    import gc

    import numpy as np
    import onnx
    import onnxruntime as ort

    from onnxremat.graph.ir import subgraphs
    from onnxremat.graph.wire import read_light
    from onnxremat.memory.taken import heap_bytes
    from onnxremat.ort.infer import build_graph
    from onnxremat.ort.providers import tiny_model
    from onnxremat.ort.session import TUNED, session_options
    from onnxremat.rewrite.pins import PREFIX as PIN
    from onnxremat.session.held import open_light
    from onnxremat.session.structures import graph_bytes

    def nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        found = list(graph.node)
        return found + [n for node in found for body in subgraphs(node) for n in nodes(body)]

    ort.InferenceSession(tiny_model()).run(None, {"x": np.ones(1, np.float32)})
    content = read_light(file, PIN).content
    model = onnx.ModelProto.FromString(content)
    graph, listed = model.graph, nodes(model.graph)
    weights = [t.name for t in graph.initializer]
    made = [name for node in listed for name in node.output]
    names = [*made, *weights, *(node.name for node in listed)]
    ends = len(graph.output) + len({v.name for v in graph.input} - set(weights))
    counts = (
        1, len(made), sum(len(n.input) for n in listed), sum(len(n.attribute) for n in listed),
        sum(len(a.ints) for n in listed for a in n.attribute), len(weights), ends,
        sum(map(len, names)),
    )  # fmt: skip
    said = graph_bytes(build_graph(model, file.parent))
    small = sum(len(t.raw_data) for t in graph.initializer)
    del model, graph, listed
    gc.collect()
    options = session_options(TUNED)
    options.add_session_config_entry("session.disable_prepacking", "1")
    before = heap_bytes()
    session = open_light(file.resolve(), content, options, TUNED)
    gc.collect()
    heap = heap_bytes() - before - small
    del session, content  # both were on the heap until now
    return {"heap": heap, "said": said, "parts": dict(zip(PARTS, counts, strict=True))}


def fitted(found: list[dict[str, Any]]) -> dict[str, int]:
    """Constants by name."""
    import numpy as np
    from scipy.optimize import nnls

    rows = np.array([list(row["parts"].values()) for row in found], float)
    heap = np.array([row["heap"] for row in found], float)
    scale = 1 / (heap + 300 * KIB)  # small graphs are mostly what every session has
    found_, _ = nnls(rows * scale[:, None], heap * scale)
    return dict(zip(PARTS, map(round, found_), strict=True))


def main() -> int:
    """Print a line per file, and the fit where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="+", type=Path)
    parser.add_argument("--fit", action="store_true", help="the constants that fit best")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(args.file[0])))
        return 0
    found = []
    print("| file | named values | heap, KiB | said | of it |\n|---|---:|---:|---:|---:|")
    for file in args.file:
        words = [sys.executable, __file__, str(file), "--one"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            print(f"{file.name}: {(done.stderr.splitlines() or ['it died'])[-1]}", file=sys.stderr)
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        found.append(row)
        heap, said = row["heap"], row["said"]
        values = row["parts"]["OUTPUT"]
        print(
            f"| {file.name} | {values} | {heap / KIB:.0f} | {said / KIB:.0f} | {said / heap:.3f} |"
        )
    if args.fit and found:
        print("\n" + "\n".join(f"{name} = {value}" for name, value in fitted(found).items()))
    return 0 if len(found) == len(args.file) else 1


if __name__ == "__main__":
    sys.exit(main())
