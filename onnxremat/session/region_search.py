"""The least arena that serves a model: simulated, then tried by runs. A process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxremat.errors import OnnxrematError
from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.temporary import scratch_folder
from onnxremat.graph.traits import is_alias
from onnxremat.graph.wire import read_light
from onnxremat.memory.arena import LARGEST, UNIT, Region, smallest_regions
from onnxremat.memory.events import EVENT, Events
from onnxremat.ort.binding import empty, wrap
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import SIZES_KEY, Feeds, Profile, ended, profile
from onnxremat.ort.session import Options, first_line, session_options
from onnxremat.schedule.simulate import Rules, simulate
from onnxremat.session.held import FOLDER
from onnxremat.session.measure import executed

ROOM = (1.0, 1.01, 1.02, 1.04, 1.08, 1.12)  # of the first region as simulated, tried in turn


def as_events(graph: Graph, found: Profile, bound: Sequence[str] = ()) -> Events:
    """A run's events as far as a profile tells: values when they are made and dead, the workspace
    of a kernel as one block between them."""
    scratch = {kernel.name: kernel.scratch for kernel in found.kernels}
    line = simulate(graph, Rules(reuse=False), scratch=scratch)
    kept = set(graph.outputs)
    asked: list[list[int]] = [[] for _ in line.ops]
    given: list[list[int]] = [[] for _ in line.ops]
    sizes: list[int] = []
    moments = moments_over(graph)
    ends = {name: last for name, _, last, _ in line.buffers}
    ends |= {moments[name]: last for name, last in ends.items() if name in moments}
    for name, first, _, size in line.buffers:
        if name in graph.inputs or name in bound or name in moments or not size:
            continue
        asked[first].append(len(sizes))
        if name not in kept:
            given[ends[name]].append(len(sizes))
        sizes.append(size)
    rows = []
    for step, work in enumerate(line.scratch):
        rows += [(sizes[slot], slot) for slot in asked[step]]
        parts = [work // 2] * 2 if moments.keys() & graph.ops[step].outputs else [work]
        slots = range(len(sizes), len(sizes) + len(parts) * bool(work))
        rows += [(part, slot) for part, slot in zip(parts, slots, strict=False)]
        rows += [(0, slot) for slot in reversed(slots)]
        sizes += parts[: len(slots)]
        rows += [(0, slot) for slot in given[step]]
    return _numbered(np.array(rows, EVENT))


def moments_over(graph: Graph) -> dict[str, str]:
    """Running moments that a BatchNormalization writes over those it reads, to these: what it finds
    of the batch are two blocks more (``batch_norm.cc``)."""
    made = {name: op for op in graph.ops for name in op.writes}
    return {
        new: old
        for op in graph.ops if op.standard and op.op_type == "BatchNormalization"
        for new, old in zip(op.outputs[1:3], op.inputs[3:5], strict=False)
        if new and new not in graph.outputs and old in made and not is_alias(made[old])
    }  # fmt: skip


def _numbered(events: Events) -> Events:
    """Slots numbered in the order of their requests."""
    order = events["slot"][events["size"] > 0]
    place = np.zeros(len(order), np.int64)
    place[order] = np.arange(len(order))
    events["slot"] = place[events["slot"]]
    return events


def stays(graph: Graph) -> list[int]:
    """Bytes of the blocks that kernels ask for as a session is opened, and keep. Kernels reserve
    what they pack, beside the arena's regions; a ConvTranspose alone asks for it as for any value
    (``core/providers/cpu/nn/conv_transpose.cc``)."""
    packed = {op.inputs[1]: 0 for op in graph.ops if op.op_type == "ConvTranspose"}
    tensors = [graph.tensors[name] for name in packed]
    return [tensor.bytes for tensor in tensors if tensor.role is Role.WEIGHT]


@dataclass(frozen=True)
class Opened:
    """What a session is opened with.

    Attributes:
        content: the model; big weights may lie in ``folder``.
        bound: outputs that the caller gives memory for.
    """

    content: bytes
    folder: Path
    options: Options
    bound: Sequence[str] = ()


def bytes_held(opened: Opened, feeds: Feeds, region: Region) -> int:
    """What such an arena really holds after two runs, weights aside."""
    from onnxremat.memory.session import RegionSession

    with scratch_folder() as folder:
        made = session_options(opened.options)
        made.enable_profiling = True
        made.profile_file_prefix = str(Path(folder) / "profile")
        made.add_session_config_entry(SIZES_KEY, str(Path(folder) / "memory.csv"))
        made.add_session_config_entry(FOLDER, str(opened.folder))
        session = RegionSession.opened(opened.content, made, region)
        binding = session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        for _ in range(2):
            binding.clear_binding_outputs()  # the caller lets outputs go between runs
            for value in session.get_outputs():
                if value.name in opened.bound:
                    binding.bind_ortvalue_output(value.name, wrap(empty(value)))
                else:
                    binding.bind_output(value.name, "cpu")
            session.run_with_iobinding(binding)
        found = ended(session, Path(folder) / "memory.csv", 2)
    return found.arena_bytes - found.weight_bytes


def _search(request: Mapping[str, Any]) -> dict[str, Any]:
    file, options = Path(request["model"]), Options.from_json(request["options"])
    light = read_light(file, request["without"])
    opened = Opened(light.content, file.parent, options, request["bound"])
    model = onnx.ModelProto.FromString(light.content)
    graph = executed(build_graph(model, file.parent), options)
    feeds = seeded_feeds(graph)
    events = as_events(graph, profile(model, feeds, options, folder=file.parent), opened.bound)
    best = least_held(
        smallest_regions(events, stays=stays(graph)),
        lambda region: bytes_held(opened, feeds, region),
    )
    return {"why": "no arena close to its live peak serves it"} if best is None else asdict(best)


def least_held(regions: Sequence[Region], ran: Callable[[Region], int]) -> Region | None:
    """The arena that holds least when it is tried, with what it then held.

    A block that the profile does not tell of, or tells of a moment late, finds no room in an arena
    of the least size, and the region that is added for it is as large again: a little more at first
    saves that.

    Args:
        regions: by what they hold as simulated, the least first.
        ran: bytes that one held in two runs.
    """
    best: Region | None = None
    for region in regions:
        for more in ROOM:
            first = min(LARGEST, int(more * region.bytes) // UNIT * UNIT)
            promised = region.held + first - region.bytes
            if best is not None and best.held <= promised:
                break
            held = ran(replace(region, bytes=first))
            if best is None or held < best.held:
                best = replace(region, bytes=first, held=held)
            if held <= promised:
                break
    return best


def _child() -> dict[str, Any]:
    try:
        return _search(json.loads(sys.argv[1]))
    except OnnxrematError as error:
        return {"why": str(error).splitlines()[0]}
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        return {"why": first_line(error)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_child()) + "\n")
