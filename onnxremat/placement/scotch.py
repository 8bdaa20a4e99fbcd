"""Scotch's partition of the classes, where its program ``gpart`` is installed.

As the released ``dp.cpp -scotch`` asks for it: compute as weights of vertices, costs of outputs as
weights of edges, in millionths of a unit of time; k parts of even compute that cut little. Scotch
knows no CPU, no memory and no direction. Classes are numbered in the order in which that program
lists them, not named by their colours, for which Scotch reserves memory up to the largest.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from math import inf

import numpy as np

from onnxremat.errors import UnsupportedError
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.contracted import Contracted, forward_classes
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.hash_order import hash_order

PROGRAMS = ("gpart", "scotch_gpart")  # its own name, Debian's
MILLIONTHS = 1e6
LARGEST = 2**31 - 1  # a weight


def scotch(graph: PlacementGraph, work: Work) -> Answer:
    """What ``gpart`` makes of the graph.

    Raises:
        UnsupportedError: it is not installed, gives up, or nodes need a CPU.
    """
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        raise UnsupportedError(
            "scotch needs the program gpart", why="no gpart or scotch_gpart is on the PATH",
            hint="install Scotch, or look at bisection",
        )  # fmt: skip
    if not graph.supported.all():
        raise UnsupportedError(
            "scotch knows accelerators only", why="a node is not supported there",
            hint="choose another method",
        )  # fmt: skip
    contracted = forward_classes(graph)
    order = hash_order(v.colour for v in contracted.vertices)
    asked = _written(graph, contracted, order)
    try:
        ended = subprocess.run(
            [program, str(graph.accelerators)], input=asked, capture_output=True, text=True,
            timeout=None if work.left == inf else max(work.left, 0.01), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _gave_up(program, str(error)) from error
    numbers = ended.stdout.split()
    if ended.returncode or len(numbers) != 2 * len(order) + 1:
        raise _gave_up(program, (ended.stderr.strip() or "it wrote no partition").splitlines()[-1])
    part = dict(zip(map(int, numbers[1::2]), map(int, numbers[2::2]), strict=True))
    at = {colour: part[i] for i, colour in enumerate(order)}
    where = np.zeros(graph.count, np.int64)
    for node, colour in contracted.colours.items():
        where[node] = at[colour]
    return Answer("scotch", inf, 0.0, "", where, seconds=work.taken)


def _gave_up(program: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"{program} gave no partition", why=why, hint="look at bisection")


def _written(graph: PlacementGraph, contracted: Contracted, order: list[int]) -> str:
    """The graph in Scotch's format, vertices and edges weighted, without labels."""
    colours = contracted.colours
    tails: dict[tuple[int, int], set[int]] = defaultdict(set)
    for u, v in zip(graph.tail.tolist(), graph.head.tolist(), strict=True):
        if colours[u] != colours[v]:
            tails[colours[u], colours[v]].add(u)
    weight: dict[int, dict[int, float]] = {colour: {} for colour in order}
    for a, b in sorted(tails):
        cost = 0.0
        for u in sorted(tails[a, b], key=lambda u: int(graph.ids[u])):
            cost += float(graph.out[u])
        for one, other in ((a, b), (b, a)):
            weight[one][other] = weight[one].get(other, 0.0) + cost
    time = dict.fromkeys(order, 0.0)
    for vertex in contracted.vertices:
        time[vertex.colour] += vertex.acc
    number = {colour: i for i, colour in enumerate(order)}
    lines = ["0", f"{len(order)} {sum(map(len, weight.values()))}", "0 011"]
    for colour in order:
        ends = [f"{_whole(w)} {number[b]}" for b, w in sorted(weight[colour].items())]
        lines.append(" ".join([str(_whole(time[colour])), str(len(ends)), *ends]))
    return "\n".join(lines) + "\n"


def _whole(time: float) -> int:
    return min(int(MILLIONTHS * time), LARGEST)
