"""Costs on providers other than the processor's: each op by itself, stretches of them, the whole.

An op by itself is not what it is among others: a provider fuses them, and reorders values only
where they come in and leave. So ops are scaled to what stretches of the listed order take, and
stretches to the whole.

Measured in a child process: a provider's library may end its process on an op (seen with
OpenVINO's on a MaxPool), and that op then just does not run there. The child is this module. What
it has not answered when its time is over is estimated; which ops a provider takes has to be known,
so opening the whole graph once is waited for.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxremat.cost.analytic import Roofline, analytic_costs, scratch_bytes
from onnxremat.cost.detect import hardware
from onnxremat.cost.kept import cache_folder
from onnxremat.cost.measure import (
    AS_USUAL,
    UNMEASURED,
    Measuring,
    machine_key,
    read_cache,
    write_cache,
)
from onnxremat.cost.table import CostTable, signatures
from onnxremat.device.machine import Device
from onnxremat.errors import ModelError, OnnxrematError
from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.subgraph import subgraph
from onnxremat.graph.temporary import scratch_folder
from onnxremat.ort.arrays import write_arrays
from onnxremat.ort.binding import wrap
from onnxremat.ort.feeds import Repeated, seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import SIZES_KEY, Feeds, ended
from onnxremat.ort.providers import CPU, assigned, beside_gpu, open_on, tiny_model
from onnxremat.ort.session import TUNED
from onnxremat.ort.values import Stage

SECONDS = 0.02  # aim for this much measuring per op
WHOLE = 0.5  # and for this much per stretch, and for the whole
RUNS = (3, 30)
STRETCHES = 8
MANY = 32  # inputs, to see what one adds to a call
CHILD = (sys.executable, "-m", "onnxremat.cost.foreign")
DEATHS = 20  # of the child, after which measuring ends
Answer = dict[str, Any]


def foreign_costs(
    graph: Graph,
    feeds: Feeds,
    device: Device,
    ideal: Roofline,
    how: Measuring = AS_USUAL,
) -> CostTable:
    """Seconds of every op that a device's provider takes of the graph, less what a call costs, and
    scaled so that the parts sum to the whole where it takes the whole.

    Args:
        ideal: stands in for ops that cannot be run by themselves.
        how: what there is no time for is estimated.

    Raises:
        ModelError: the provider ends the process again and again.
    """
    path = cache_folder() / f"costs-{_key(device)}.json"
    kept = read_cache(path)
    known = {} if how.fresh else kept
    keys = signatures(graph, feeds)
    wanted = {key: name for name, key in reversed(keys.items()) if key not in known}
    singles = dict.fromkeys(wanted.values())  # one op per signature
    names = [name for name in keys if name in singles]
    found = _measured(graph, feeds, device, how.folder, names, time.monotonic() + how.within)
    deadly = {keys[name] for name in found["deadly"]}
    for name, seconds in found["ops"].items():
        if seconds is not None:
            known[keys[name]] = [max(1e-7, seconds - found["call"]), 0.0, 0.0]
    write_cache(path, {**kept, **known})
    takes = (
        set(found["taken"]) if found["taken"] is not None else {n for n in keys if keys[n] in known}
    )
    takes |= {op.name for op in graph.ops
              if op.name in found["beside"] and beside_gpu(graph, op, device)}  # fmt: skip
    taken = [op for op in graph.ops if op.name in takes and keys[op.name] not in deadly]
    estimate = analytic_costs(graph, ideal).seconds
    seconds = {op.name: known.get(keys[op.name], [estimate[op.name]])[0] for op in taken}
    source = "measured op by op"
    for names, took in zip(_stretches(graph), found["stretches"], strict=False):
        here = sum(seconds.get(name, 0.0) for name in names)
        if took and here and all(name in seconds for name in names):
            part = max(1e-7, took - _calling(graph, names, found)) / here
            seconds |= {name: seconds[name] * part for name in names}
            source = "measured op by op, scaled to stretches"
    total = sum(seconds.values())
    if found["whole"] and total and len(taken) == len(graph.ops):
        # What the provider fuses costs less together than apart.
        scale = min(1.0, found["whole"] / total)
        seconds = {name: value * scale for name, value in seconds.items()}
        source += " and the whole" if "stretches" in source else ", scaled to the whole"
    notes = tuple(f"{device.provider} ends the process on op '{n}'" for n in found["deadly"])
    unknown = sum(estimate[op.name] for op in taken if keys[op.name] not in known)
    if found["late"] and unknown:
        share = unknown / sum(estimate[op.name] for op in taken)
        notes += (UNMEASURED.format(share=share),)
    counted = found["scratch"]
    scratch = {op.name: counted.get(op.name, scratch_bytes(graph, op)) for op in taken}
    return CostTable(
        seconds, scratch, source, device=device.name, notes=notes, value=found["value"],
        call=found["call"],
    )  # fmt: skip


def _calling(graph: Graph, names: list[str], found: Answer) -> float:
    """Seconds of calling a session of some ops."""
    made = {value for op in graph.ops if op.name in set(names) for value in op.writes}
    reads = {value for op in graph.ops if op.name in set(names) for value in op.reads} - made
    bound = {name for name in reads if graph.tensors[name].role is not Role.WEIGHT}
    return float(found["call"] + found["value"] * (len(bound) + len(_leaving(graph, names))))


def _stretches(graph: Graph) -> list[list[str]]:
    """The ops in their listed order, in stretches of about as many."""
    names = [op.name for op in graph.ops]
    size = max(2, -(-len(names) // STRETCHES))
    return [names[start : start + size] for start in range(0, len(names), size)]


def _measured(
    graph: Graph, feeds: Feeds, device: Device, folder: Path | None, names: list[str], until: float
) -> Answer:
    """What the child finds until then; started anew behind every op it dies of.

    ``late``: it was ended before it was done.
    """
    found: Answer = {
        "call": 0.0,
        "value": 0.0,
        "taken": None,
        "beside": [],
        "whole": 0.0,
        "stretches": [],
        "scratch": {},
        "ops": {},
        "late": False,
    }
    found["deadly"] = []
    by_name = {op.name: op for op in graph.ops}
    with scratch_folder() as scratch:
        base = Path(scratch)
        (base / "whole.onnx").write_bytes(to_model(graph).SerializeToString())
        write_arrays(base / "feeds.npz", feeds)
        for index, name in enumerate(names):
            if time.monotonic() > until:  # the child will not come to them
                break
            single = subgraph(graph, [by_name[name]], set(by_name[name].writes))
            (base / f"{index}.onnx").write_bytes(to_model(single).SerializeToString())
        for index, row in enumerate(_stretches(graph)):
            part = subgraph(graph, [by_name[name] for name in row], _leaving(graph, row))
            (base / f"stretch{index}.onnx").write_bytes(to_model(part).SerializeToString())
        start, whole = 0, True
        for _ in range(DEATHS):
            request = {
                "base": scratch, "device": asdict(device), "start": start, "whole": whole,
                "count": len(names), "folder": str(folder) if folder else "",
            }  # fmt: skip
            last = -1
            for answer in _answers(request, until):
                if "op" in answer:
                    last = answer["op"]
                    if "seconds" in answer:
                        found["ops"][names[last]] = answer["seconds"]
                elif "stretch" in answer:
                    found["stretches"].append(answer["stretch"])
                else:
                    found |= answer
            if found.pop("done", False) or found["late"]:
                return found
            if last >= 0 and names[last] not in found["ops"]:
                found["deadly"].append(names[last])
            start, whole = last + 1, False
    raise ModelError(
        f"{device.provider} ends the process again and again",
        where=f"device '{device.name}'",
        hint="plan without this device, or pin fewer ops to it",
    )


def _leaving(graph: Graph, names: list[str]) -> set[str]:
    """Results of some ops that others read or the graph returns."""
    inside = set(names)
    made = {value for op in graph.ops if op.name in inside for value in op.writes}
    read = {value for op in graph.ops if op.name not in inside for value in op.reads}
    return made & (read | set(graph.outputs))


def _answers(request: Answer, until: float) -> Iterator[Answer]:
    """The child's answers as they come; ``late`` where it was ended for want of time."""
    command = [*CHILD, json.dumps(request)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        late = threading.Event()

        def over() -> None:
            late.set()
            child.kill()

        clock = threading.Timer(_left(until), over)
        clock.daemon = True
        try:
            for line in child.stdout:
                if answer := _answer(line):
                    if clock.ident is None and not {"op", "taken"}.isdisjoint(answer):
                        clock.interval = _left(until)
                        clock.start()
                    yield answer
        finally:  # also where nobody wants to know more: Ctrl-C
            clock.cancel()
            child.kill()
        if late.is_set():
            yield {"late": True}


def _answer(line: str) -> Answer | None:
    """None for what a provider's library prints, and for a line that was cut short."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _left(until: float) -> float:
    return min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)


def _key(device: Device) -> str:
    options = json.dumps({**dict(sorted(device.options.items())), "precision": device.precision})
    about = device.provider, device.index, options, *hardware(device)
    return machine_key(device.threads, *about)


# ---- in the child ----------------------------------------------------------------------------


def _child(request: Answer) -> None:
    base, device, drawn = Path(request["base"]), Device(**request["device"]), Repeated()
    folder = Path(request["folder"]) if request["folder"] else None
    if request["whole"]:
        _say(call=_call_seconds(device), value=_value_seconds(device))
        _whole(base, device, folder)
        for path in sorted(base.glob("stretch*.onnx")):
            _say(stretch=_alone(path, device, folder, drawn, WHOLE))
    for index in range(request["start"], request["count"]):
        _say(op=index)
        _say(op=index, seconds=_alone(base / f"{index}.onnx", device, folder, drawn))
    _say(done=True)


def _say(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _call_seconds(device: Device) -> float:
    """What calling a session costs on the device, whatever it computes."""
    stage = Stage(open_on(device, tiny_model(), TUNED), device, ("y",), {})
    stage.bind("x", wrap(np.ones(1, np.float32)))
    return _median_seconds(stage, SECONDS)


def _value_seconds(device: Device) -> float:
    """What each input or output of a session adds to a call."""
    names = [(f"x{i}", f"y{i}") for i in range(MANY)]
    info = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
        for pair in names
        for name in pair
    }
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Neg", [x], [y], name=y) for x, y in names], "many",
            [info[x] for x, _ in names], [info[y] for _, y in names],
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    stage = Stage(open_on(device, model, TUNED), device, tuple(y for _, y in names), {})
    for x, _ in names:
        stage.bind(x, wrap(np.ones(1, np.float32)))
    extra = _median_seconds(stage, SECONDS) - _call_seconds(device)
    return max(0.0, extra) / (2 * (MANY - 1))


def _whole(base: Path, device: Device, folder: Path | None) -> None:
    """Ops the provider takes of the whole graph, and the seconds of a run."""
    try:
        session = open_on(device, _as_is(base / "whole.onnx"), TUNED, folder)
    except OnnxrematError:  # it refuses some graphs as a whole: then what it runs alone counts
        return
    names = assigned(session)
    _say(taken=[name for name, provider in names.items() if provider == device.provider],
         beside=[name for name, provider in names.items() if provider == CPU])  # fmt: skip
    outputs = tuple(value.name for value in session.get_outputs())
    stage = Stage(session, device, outputs, {})
    with np.load(base / "feeds.npz") as file:
        values = {name: wrap(np.asarray(file[name], order="C")) for name in file.files}
    try:
        for name, value in values.items():
            stage.bind(name, value)
        _say(whole=_median_seconds(stage, WHOLE))
    except Exception:  # the device cannot hold the whole: plans are made so that it need not
        return
    del stage, session
    if not device.opaque:
        _say(scratch=_workspace(base, device, folder, values))


def _workspace(
    base: Path, device: Device, folder: Path | None, values: dict[str, Any]
) -> dict[str, int]:
    """Bytes of workspace of each kernel in a run of the whole: which algorithm a library takes
    for an op, and how much memory for it, is its own choice."""
    sizes = base / "sizes.csv"
    session = open_on(
        device, _as_is(base / "whole.onnx"), TUNED, folder,
        entries={SIZES_KEY: str(sizes)}, prefix=str(base / "profile"),
    )  # fmt: skip
    stage = Stage(session, device, tuple(value.name for value in session.get_outputs()), {})
    for name, value in values.items():
        stage.bind(name, value)
    for _ in range(2):
        stage.run([])
    return {kernel.name: kernel.scratch for kernel in ended(session, sizes, 1, 1).kernels}


def _as_is(path: Path) -> Any:
    return onnx.load_model(str(path), load_external_data=False)


def _alone(
    path: Path, device: Device, folder: Path | None, drawn: Repeated, limit: float = SECONDS
) -> float | None:  # fmt: skip
    """Median seconds of a session with some ops alone; None when it cannot be run so."""
    try:
        graph = build_graph(_as_is(path), folder)
        session = open_on(device, to_model(graph), TUNED, folder)
        if device.provider not in assigned(session).values():
            return None
        stage = Stage(session, device, graph.outputs, {})
        for name, value in seeded_feeds(graph, drawn=drawn).items():
            stage.bind(name, wrap(value))
        return _median_seconds(stage, limit)
    except Exception:  # its inputs have to be special values: the estimate will do
        return None


def _median_seconds(stage: Stage, limit: float) -> float:
    times: list[float] = []
    start = time.perf_counter()
    while len(times) <= RUNS[0] or (time.perf_counter() - start < limit and len(times) < RUNS[1]):
        begin = time.perf_counter()
        stage.run([])
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))
