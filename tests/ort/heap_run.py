"""Open and run a model under the preloaded heap meter; prints the bytes held and the peak of a run.

Started by ``test_heap.py`` in a process of its own: ``python heap_run.py MODEL FEEDS.npz OPTIONS``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys

import numpy as np
import onnxruntime as ort

from onnxremat.ort.session import Options, session_options

meter = ctypes.CDLL(None)
for name in ("heap_live", "heap_top"):
    getattr(meter, name).restype = ctypes.c_long


def main(path: str, feeds: str, options: str) -> None:
    """One session without arena and pattern, so that every request reaches the heap."""
    with np.load(feeds) as file:
        arrays = {name: file[name] for name in file.files}
    made = session_options(Options(**json.loads(options)))
    # The first session of a process loads libraries and starts threads: that is not weights.
    first = ort.InferenceSession(path, made, providers=["CPUExecutionProvider"])
    first.run(None, arrays)
    del first
    gc.collect()
    before = meter.heap_live()
    session = ort.InferenceSession(path, made, providers=["CPUExecutionProvider"])
    held = meter.heap_live() - before
    binding = session.io_binding()
    for name, value in arrays.items():
        binding.bind_cpu_input(name, value)
    for value in session.get_outputs():
        binding.bind_output(value.name, "cpu")
    start = meter.heap_live()
    meter.heap_reset()
    session.run_with_iobinding(binding)
    print(json.dumps({"held": held, "run": meter.heap_top() - start}))


main(*sys.argv[1:])
