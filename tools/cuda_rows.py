"""One row of cuda_all.py, in a process of its own: prints a JSON object on its last line.

    python tools/cuda_rows.py '{"what": "step", "net": "resnet50", "provider": "cuda"}'

Every function below is one kind of row; its docstring says what the figures are.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from cuda_plans import (
    BENCH_SECONDS,
    GPU,
    HOST,
    LAPS,
    Priced,
    Stand,
    gpu_facts,
    lap,
    median_seconds,
    priced,
    small_step,
    watched,
)  # fmt: skip

from onnxremat.device.machine import PROVIDERS, Machine
from onnxremat.errors import OnnxrematError, UnsupportedError
from onnxremat.execute.annotated import load_annotated
from onnxremat.execute.deployment import Deployment, deploy
from onnxremat.execute.partition_cuts import Terms
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.binding import wrap
from onnxremat.ort.profile import SIZES_KEY
from onnxremat.ort.providers import assigned, beside_gpu, missing, open_on, place
from onnxremat.ort.session import TUNED, runtime_version
from onnxremat.ort.values import Copies, Stage, as_array, moved
from onnxremat.pipeline.artifact import Kind
from onnxremat.pipeline.bench import OnDevices, bench
from onnxremat.pipeline.devices.over_devices import DevicesRun, run_whole
from onnxremat.schedule.assign import assigned as plan_of
from onnxremat.schedule.assign import split
from onnxremat.session.compare import compare

Answer = dict[str, Any]
ROOM = (1.0, 1.01, 1.03, 1.06, 1.12, 1.25, 1.5)  # limits tried, as shares of the predicted peak
SHARES = (0.6, 0.7, 0.8, 0.9, 0.97)  # tried where there is no plan within the one asked for
HEAVY = ("Conv", "ConvTranspose", "MatMul", "Gemm", "FusedMatMul")
RUNS = 20


def main() -> None:
    """Run the row that is asked for."""
    asked = json.loads(sys.argv[1])
    what, lock = asked.pop("what"), asked.pop("lock", "")
    # Where it is when its time is over.
    faulthandler.dump_traceback_later(max(1.0, asked.pop("limit", 3600.0) - 2))
    stand = Stand(asked.pop("provider"), asked.pop("tiny", False), lock)
    if what == "torch":
        from cuda_torch import torch_row

        found = torch_row(stand, **asked)
    else:
        found = KINDS[what](stand, **asked)
    print(json.dumps({**found, "laps": LAPS}))


# ---- is it there ---------------------------------------------------------------------------------


def starts(stand: Stand) -> Answer:
    """Whether the provider starts, versions, and what the profile says of a kernel there: without
    ``mem_bytes_requested_in_use`` no peak is counted."""
    why = missing(replace(stand.gpu, flops=0.0)) if stand.provider == "cuda" else ""
    if why:
        raise UnsupportedError(f"CUDA does not start: {why}")
    one = priced(Stand(stand.provider, tiny=True), "resnet50", train=False, measured=False)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sizes = Path(folder) / "sizes.csv"
        session = open_on(
            stand.gpu, to_model(one.prepared.graph), TUNED,
            entries={SIZES_KEY: str(sizes)}, prefix=str(Path(folder) / "profile"),
        )  # fmt: skip
        run = _runner(session, one.prepared.graph, one, stack)
        run()
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [e["args"] for e in events if e.get("name", "").endswith("_kernel_time")]
    counted = [k for k in kernels if "mem_bytes_requested_in_use" in k]
    most = max((int(k["mem_bytes_requested_in_use"]) for k in counted), default=0)
    shown = ("op_name", "provider")
    return {
        "onnxruntime": runtime_version(), **gpu_facts(), "kernels": len(kernels),
        "kernels_with_counted_bytes": len(counted), "most_bytes_counted": most,
        "options": session.get_provider_options(),
        "example": {k: v for k, v in kernels[-1].items() if "mem" in k or k in shown},
    }  # fmt: skip


def left_over(stand: Stand, nets: Sequence[str]) -> Answer:
    """Operators of training steps that CUDA leaves to the processor, per net: how many nodes; and
    how many that count sizes, which onnxruntime itself wants there."""
    found: Answer = {}
    for net in nets:
        graph = small_step(stand, net)
        taken = assigned(open_on(stand.gpu, to_model(graph), TUNED))
        left = [op for op in graph.ops if taken.get(op.name) != stand.gpu.provider]
        rest = [op for op in left if not beside_gpu(graph, op, stand.gpu)]
        found[net] = {**Counter(op.op_type for op in rest), "of sizes": len(left) - len(rest)}
    return found


# ---- one GPU -------------------------------------------------------------------------------------


def step(
    stand: Stand, net: str, train: bool = True, share: float = 0.5,
    others: Sequence[float] = (), ways: Sequence[str] = (),
) -> Answer:  # fmt: skip
    """A plan within a share of what storing everything takes, or the next larger one that there is
    a plan for: bytes predicted, counted and risen, the hard limit that it runs under, outputs
    against the processor, order, overhead.

    Args:
        others: further shares, until there is no plan for one; with the first they are a row of
            MAGIS's table: the least share of the counted peak at less than 5 and 10 % slowdown.
        ways: within the same share also by ``swap`` alone, and by ``both``, recomputing as well.
    """
    one = priced(stand, net, train=train)
    base = _some(one.plan())
    need = base.predicted[GPU].peak
    share, made = _first(one, need, (share, *(more for more in SHARES if more > share)))
    plans = {"planned": made}
    for way in ways:
        plans[way] = one.plan(int(share * need), once=way == "swap", swap=True)
    for other in others:
        plans[f"{other:g}"] = one.plan(int(other * need))
        if plans[f"{other:g}"] is None:
            break
    there = {name: plan for name, plan in plans.items() if plan is not None}
    lap("planned")
    reference = run_whole(base.graph, one.feeds, base)
    lap("run on the processor")
    with stand.alone():
        lap("waited")
        checked = {"store_all": _checked(one, base, reference)}
        if made is not None:
            stored = next(iter(DevicesRun(base, one.feeds).outputs.values()))
            checked["planned"] = _checked(one, made, stored)
        lap("checked")
        rows = _timed(one, base, there)
    lap("timed")
    return {
        "net": net, "train": train, "left_to_the_processor": list(one.left),
        "costs": one.tables[GPU].source, "notes": list(one.tables[GPU].notes), "share": share,
        **checked, "rows": rows, **_least(rows),
    }  # fmt: skip


def _timed(one: Priced, base: Deployment, plans: Mapping[str, Deployment]) -> Answer:
    """Seconds and counted bytes of plans beside those of storing everything, in turns."""
    contenders = [OnDevices("store_all", base), *(OnDevices(n, p) for n, p in plans.items())]
    seconds = 0.2 if one.stand.tiny else BENCH_SECONDS * len(contenders) / 2
    rounds = (2, 3) if one.stand.tiny else (5, 60)
    timings = {t.name: t for t in bench(contenders, one.feeds, seconds=seconds, rounds=rounds)}
    rows: Answer = {"store_all": {
        "seconds": timings["store_all"].seconds, "planned_seconds": base.makespan,
        "counted_bytes": DevicesRun(base, one.feeds).peaks[GPU],
    }}  # fmt: skip
    for name, plan in plans.items():
        rows[name] = {
            "predicted_bytes": plan.predicted[GPU].peak,
            "counted_bytes": DevicesRun(plan, one.feeds).peaks[GPU],
            "overhead_planned": plan.makespan / base.makespan - 1,
            "overhead_measured": timings[name].ratio - 1, "spread": timings[name].spread,
        }  # fmt: skip
    return rows


def _least(rows: Answer) -> Answer:
    """The least share of the counted peak at less than 5 and 10 % measured slowdown."""
    whole = rows["store_all"]["counted_bytes"]
    found: Answer = {}
    for most in (5, 10):
        within = [
            row["counted_bytes"] / whole for name, row in rows.items()
            if whole and name != "store_all" and row["overhead_measured"] < most / 100
        ]  # fmt: skip
        found[f"least_under_{most}"] = min(within, default=1.0)
    return found


def _first(one: Priced, need: int, shares: Sequence[float]) -> tuple[float, Deployment | None]:
    """The first share of some bytes that there is a plan within, and the plan."""
    for share in shares:
        made = one.plan(int(share * need))
        if made is not None:
            return share, made
    return 1.0, None


def _checked(one: Priced, made: Deployment, wanted: Mapping[str, np.ndarray]) -> Answer:
    """Checks of a plan against what others have computed."""
    run = DevicesRun(made, one.feeds)
    differences = {how: compare(found, wanted) for how, found in run.outputs.items()}
    run.__dict__["differences"] = differences  # instead of those from the processor
    kernels = [k for row in run.recorded.profiles.values() for k in row.kernels]
    peak, predicted = run.peaks[GPU], made.predicted[GPU].peak
    checks = {check.kind: check for check in run.checks}
    with watched(one.stand) as rise:
        limits = ((share, int(share * predicted)) for share in ROOM)
        least = next((share for share, limit in limits if _runs_within(one, made, limit)), None)
    return {
        "predicted_bytes": predicted, "counted_bytes": peak, "risen_bytes": rise[0],
        "error": predicted / peak - 1 if peak else None,
        "worst_difference": max(d.worst for d in run.differences.values()),
        "outputs_ok": checks[Kind.OUTPUTS].ok, "order_ok": checks[Kind.ORDER].ok,
        "order": checks[Kind.ORDER].text,
        "placement": checks[Kind.PLACEMENT].text, "partitions": len(made.parts.partitions),
        "runs_within": least,
        "kernels": dict(Counter(k.provider for k in kernels)),
        "copies": dict(Counter(k.op_type for k in kernels if k.op_type.startswith("Memcpy"))),
    }  # fmt: skip


def _runs_within(one: Priced, made: Deployment, limit: int) -> bool:
    """Whether it runs in pools of no more than so many bytes."""
    hard = replace(made, limits={GPU: limit})
    state, given = made.state_and_rest(one.feeds)
    try:
        with hard.executor(state) as executor:
            executor.run(given)
            executor.run(given)
    except OnnxrematError:
        return False
    return True


# ---- processor and GPU ---------------------------------------------------------------------------


def xengine(stand: Stand, net: str) -> Answer:
    """Seconds of a training step on the processor, on the GPU, and on both."""
    one = priced(stand, net, train=True)
    made = _some(one.placed({}))
    alone = _some(one.plan())
    host = stand.machine.device(HOST)
    with stand.alone(), ExitStack() as stack:
        times = bench(
            [OnDevices("both", made), OnDevices("gpu", alone)], one.feeds,
            seconds=0.2 if stand.tiny else BENCH_SECONDS, rounds=(2, 3) if stand.tiny else (4, 40),
        )  # fmt: skip
        seconds = {timing.name: timing.seconds for timing in times}
        session = open_on(host, to_model(one.prepared.graph), TUNED, one.prepared.folder)
        seconds["cpu"] = median_seconds(1, _runner(session, one.prepared.graph, one, stack, HOST))
    used = Counter(part.device for part in made.parts.partitions)
    return {"net": net, **seconds, "partitions": dict(used), "planned": made.makespan}


def one_session(stand: Stand, net: str) -> Answer:
    """The last third of an inference on the processor: partitions as sessions, against one session
    in which onnxruntime assigns nodes by their annotation."""
    one = priced(stand, net, train=False, measured=False)
    graph, machine = one.prepared.graph, stand.machine
    names = [GPU] if stand.provider == "cpu" else [GPU, GPU, HOST]
    equal = {op.name: 1.0 for op in graph.ops}
    costs = {GPU: one.tables[GPU].seconds, HOST: equal}
    plan = plan_of(graph, split(graph, names, equal), machine, costs)
    terms = Terms(pairs=one.prepared.in_place, folder=one.prepared.folder)
    tables = {**one.tables, HOST: replace(one.tables[HOST], seconds=equal)}
    made = deploy(graph, plan, machine, tables, terms)
    feeds = one.feeds
    with stand.alone():
        session = load_annotated(made)
        with made.executor() as executor:
            found = executor.run(feeds)
            parts = median_seconds(RUNS, lambda: executor.run(feeds))
        names = [output.name for output in session.get_outputs()]
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        whole = median_seconds(RUNS, lambda: session.run(None, feeds))
    return {
        "net": net, "partitions": len(made.parts.partitions), "seconds_partitions": parts,
        "seconds_one_session": whole, "difference": compare(outputs, found).worst,
    }  # fmt: skip


# ---- streams and graphs --------------------------------------------------------------------------


def streams(stand: Stand, net: str) -> Answer:
    """A training step with the gradients of weights on a second stream, against one stream."""
    one = priced(stand, net, train=True, measured=False)
    graph = one.prepared.graph
    late = _weight_gradients(graph)
    with stand.alone(), tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder) / "streams.json"
        entries = {"session.node_partition_config_file": str(file)}
        model = to_model(graph)
        plain = open_on(stand.gpu, model, TUNED, one.prepared.folder, entries=entries)
        before = json.loads(file.read_text())  # onnxruntime writes what it has done
        file.write_text(json.dumps(_second_stream(before, late)))
        other = open_on(stand.gpu, model, TUNED, one.prepared.folder, entries=entries)
        runs = [_runner(session, graph, one, stack) for session in (plain, other)]
        outputs = [run() for run in runs]
        times = [median_seconds(3 if stand.tiny else RUNS, run) for run in runs * 2]
    return {
        "net": net, "moved": len(late), "streams": len(before["streams"]),
        "seconds_one": min(times[0], times[2]), "seconds_two": min(times[1], times[3]),
        "difference": compare(outputs[1], outputs[0]).worst,
    }  # fmt: skip


def _weight_gradients(graph: Graph) -> set[str]:
    """Heavy ops that no heavy op waits for, and what only they lead to: gradients of weights, and
    their updates."""
    makers = {name: op for op in graph.ops for name in op.writes}
    leads: dict[str, bool] = {}
    for op in reversed(graph.ops):
        readers = [graph.ops[i] for name in op.writes for i in graph.readers.get(name, ())]
        leads[op.name] = any(r.op_type in HEAVY or leads[r.name] for r in readers)
    found = {op.name for op in graph.ops if op.op_type in HEAVY and not leads[op.name]}
    last = next((op.name for op in graph.ops if op.op_type in HEAVY and not leads[op.name]), "")
    found.discard(last)
    for op in graph.ops:
        made_by = {makers[name].name for name in op.reads if name in makers}
        if made_by and made_by <= found:
            found.add(op.name)
    return found


def _second_stream(config: Mapping[str, Any], late: set[str]) -> Answer:
    """onnxruntime's partition file with some nodes of the longest stream in one of their own."""
    rows, devices = [list(row) for row in config["streams"]], list(config["devices"])
    longest = max(range(len(rows)), key=lambda index: len(rows[index]))
    moved_ = [name for name in rows[longest] if name in late]
    rows[longest] = [name for name in rows[longest] if name not in late]
    return {**config, "streams": [*rows, moved_], "devices": [*devices, devices[longest]]}


def graphs(stand: Stand, net: str) -> Answer:
    """An inference with and without CUDA graphs, inputs and outputs at fixed addresses."""
    one = priced(stand, net, train=False, measured=False)
    graph = one.prepared.graph
    captured = stand.gpu
    if stand.provider == "cuda":
        captured = replace(captured, options={"enable_cuda_graph": "1"})
    with stand.alone(), ExitStack() as stack:
        runs = []
        for device in (stand.gpu, captured):
            session = open_on(device, to_model(graph), TUNED, one.prepared.folder)
            runs.append(_runner(session, graph, one, stack, fixed=True))
        outputs = [run() for run in runs]
        times = [median_seconds(3 if stand.tiny else RUNS, run) for run in runs]
    return {
        "net": net, "seconds_launched": times[0], "seconds_graph": times[1],
        "difference": compare(outputs[1], outputs[0]).worst,
    }  # fmt: skip


def _runner(
    session: Any, graph: Graph, one: Priced, stack: ExitStack, where: str = GPU,
    *, fixed: bool = False,
) -> Callable[[], dict[str, np.ndarray]]:  # fmt: skip
    """Runs a whole graph in one session, its inputs and state where the session runs.

    Args:
        fixed: outputs are written to the same place every time.
    """
    device, copies = one.stand.machine.device(where), Copies()
    values = {name: wrap(np.array(array, order="C")) for name, array in one.feeds.items()}
    if not device.in_host_memory:
        values = {name: moved(value, device, copies) for name, value in values.items()}
    given = {new: values[old] for old, new in one.prepared.in_place}
    rest = [name for name in graph.outputs if name not in given]
    if fixed:
        import onnxruntime as ort

        for name in rest:
            tensor = graph.tensors[name]
            given[name] = ort.OrtValue.ortvalue_from_shape_and_type(
                list(tensor.shape or ()), tensor.dtype, *place(device)
            )
    stage = Stage(session, device, graph.outputs, given)
    for name in graph.inputs:
        stage.bind(name, values[name])
    stack.callback(values.clear)

    def run() -> dict[str, np.ndarray]:
        made = dict(zip(stage.names, stage.run([]), strict=True)) if not fixed else {}
        if fixed:
            stage.run([])
            made = {name: given[name] for name in rest}
        return {name: as_array(value, copies) for name, value in made.items()}

    return run


# ---- training ------------------------------------------------------------------------------------


def trainer(stand: Stand, net: str) -> Answer:
    """Losses of some steps through the Trainer on the GPU and on the processor, and seconds."""
    import models
    from onnxremat.grad import differentiate
    from onnxremat.training.trainer import Trainer

    name, size = stand.net(net)
    size = {**size, "batch": 8} if not stand.tiny else size
    model = models.build(name, **size)
    graph = differentiate(model, optimizer="adamw", portable=True, dropout=False)
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    labels = np.random.default_rng(0).integers(
        0, 3, [shape[0], *shape[2:]] if name == "unet" else shape[:-1]
    )
    losses, seconds = {}, {}
    for where in ("CPUExecutionProvider", PROVIDERS[stand.provider]):
        with stand.alone():
            one = Trainer(graph, model, rate=0.001, providers=[where])
            batch = {**models.feeds(model), one.training.target: labels}
            losses[where] = [one.step(batch) for _ in range(4)]
            seconds[where] = median_seconds(
                2 if stand.tiny else 5, lambda one=one, batch=batch: one.step(batch)
            )
        finite = all(
            np.isfinite(array).all() for array in one.state.values() if array.dtype.kind == "f"
        )
    rows = list(losses.values())
    away = max(abs(a - b) / abs(b) for a, b in zip(rows[-1], rows[0], strict=True))
    return {"net": net, "losses": rows[-1], "farthest_from_the_processor": away,
            "falls": rows[-1][-1] < rows[-1][0], "state_finite": finite,
            "seconds": seconds[PROVIDERS[stand.provider]]}  # fmt: skip


def saved(stand: Stand, net: str) -> Answer:
    """A planned step written, opened with ``load_devices`` and trained with: state on the GPU."""
    from onnxremat import load_devices

    one = priced(stand, net, train=True)
    made = _some(one.plan())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        path.write_bytes(made.model().SerializeToString())
        state, given = made.state_and_rest(one.feeds)
        first = {name: array.copy() for name, array in state.items()}
        with stand.alone(), load_devices(path, state=state) as executor:
            losses = [float(np.mean(next(iter(executor.run(given).values())))) for _ in range(3)]
            executor.pull_state()
    moved_ = sum(not np.array_equal(state[name], first[name]) for name in state)
    return {"net": net, "losses": losses, "falls": losses[-1] < losses[0],
            "state_updated": moved_, "of": len(state)}  # fmt: skip


def detected(stand: Stand) -> Answer:
    """What ``onnxremat devices detect`` measures."""
    with stand.alone():
        machine: Machine = Stand(stand.provider, stand.tiny).machine
    return {
        "devices": {d.name: {"flops": d.flops, "bandwidth": d.bandwidth, "memory": d.memory}
                    for d in machine.devices},
        "links": {f"{li.source}>{li.target}": {"bandwidth": li.bandwidth, "latency": li.latency}
                  for li in machine.links},
    }  # fmt: skip


def compiled(stand: Stand) -> Answer:
    """The planner's search compiled, once per machine."""
    if not stand.tiny:
        from onnxremat.planner.search import warm_up

        warm_up()
    return {}


def _some(made: Deployment | None) -> Deployment:
    if made is None:
        raise UnsupportedError("no plan was found within the budget")
    return made


KINDS: dict[str, Callable[..., Answer]] = {
    "starts": starts, "left_over": left_over, "step": step, "xengine": xengine,
    "one_session": one_session, "streams": streams, "graphs": graphs, "trainer": trainer,
    "saved": saved, "detected": detected, "compiled": compiled,
}  # fmt: skip

if __name__ == "__main__":
    main()
