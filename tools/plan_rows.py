"""What the planner promises: instances, budgets, and the gap within a time for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plan_convnets import NETS
from plan_instances import random_layered, transformer
from plan_steps import STEPS, training_step

from onnxremat.planner.graph_files import read_graph
from onnxremat.planner.problem import Problem

STUDY = {
    "vgg16": "vgg16_b256_train.json",
    "vgg_unet": "vgg_unet_b32_train.json",
    "mobilenet": "mobilenet_b512_train.json",
    "resnet50": "resnet50_b256_train.json",
    "random_100": "random_layered_n100.json",
    "random_250": "random_layered_n250.json",
    "random_500": "random_layered_n500.json",
    "random_1000": "random_layered_n1000.json",
}  # graph files of the Checkmate and MOCCASIN studies, by the name of the instance
WIDTH = {100: 0.27, 250: 0.43, 500: 0.36, 1000: 0.31}  # of the MOCCASIN study's graphs


@dataclass(frozen=True)
class Row:
    """One promise.

    Attributes:
        graph: an instance, see :func:`load`.
        share: budget as a share of the store-all peak, per device.
        gap: promised, in percentage points of the store-all time.
        limit: seconds within which.
        fixed: first runs keep the base order.
        devices: empty, ``two`` (a second device) or ``host`` (swapping).
        quick: part of a quick run.
    """

    graph: str
    share: float
    gap: float
    limit: float
    fixed: bool = False
    devices: str = ""
    quick: bool = True

    @property
    def name(self) -> str:
        """Unique, as filters match it."""
        order = "/fixed" if self.fixed else ""
        return f"{self.graph}/{self.share:.0%}{order}{'/' if self.devices else ''}{self.devices}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"row": self.name, **asdict(self)}


def rows() -> Iterator[Row]:
    """Every promise."""
    for graph in ("vgg16", "vgg_unet", "mobilenet", "resnet50"):
        for share in (0.9, 0.7, 0.5):
            yield Row(graph, share, 0.01, 5)
    for graph in ("mobilenet", "resnet50"):
        yield Row(graph, 0.3, 0.01, 60)
    for share in (0.2, 0.15):
        yield Row("resnet50", share, 1.0, 300, quick=False)
    for share in (0.9, 0.7, 0.5, 0.3, 0.2, 0.15):
        yield Row("bert_12", share, 0.01, 10)
    for share in (0.9, 0.7, 0.5, 0.3):
        yield Row("bert_48", share, 0.01, 20)
    for layers, limit in ((160, 60), (320, 120), (1000, 600)):  # n = 4803, 9603, 30003
        yield Row(f"bert_{layers}", 0.5, 0.01, limit, quick=layers < 320)
    for count, gap in ((100, 0.001), (250, 0.5), (500, 0.3), (1000, 0.05)):
        yield Row(f"random_{count}", 0.9, 0.01, 30, fixed=True)
        yield Row(f"random_{count}", 0.8, gap, 300, fixed=True, quick=count == 100)
    for count in (100, 250):
        for share in (0.9, 0.8):
            yield Row(f"random_{count}", share, 0.001, 30)
    yield Row("bert_2", 0.7, 0.01, 5, devices="two")
    for share in (0.7, 0.5):
        yield Row("resnet50", share, 0.05, 60, devices="two")
    yield Row("bert_48", 0.5, 1.0, 300, devices="two", quick=False)
    yield Row("bert_12", 0.5, 0.05, 60, devices="host")
    for net in STEPS:
        yield Row(f"step_{net}", 0.5, 1.0, 60, devices="host", quick=False)


def load(graph: str, folder: Path | None) -> tuple[Problem, str]:
    """(problem, ``study`` or ``generated``) of an instance: a net, ``bert_LAYERS``, ``random_N``,
    ``step_MODEL``.

    Study files are read where ``folder`` has them; else an instance of the same kind is generated.

    Raises:
        ValueError: a study file that is none.
    """
    if folder is not None and graph in STUDY and (folder / STUDY[graph]).is_file():
        return read_graph(folder / STUDY[graph]), "study"
    kind, _, number = graph.partition("_")
    if graph in NETS:
        return NETS[graph](), "generated"
    if kind == "step":
        return training_step(number), "generated"
    make: dict[str, Callable[[int], Problem]] = {
        "bert": transformer,
        "random": lambda count: random_layered(count, WIDTH[count], seed=1),
    }
    return make[kind](int(number)), "generated"
