"""What became of each initializer of a model when its training step was made."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from onnxremat.grad.description import Weight
from onnxremat.grad.exported.marks import first_of
from onnxremat.grad.exported.provenance import UNSAID
from onnxremat.report.tables import plain_table

ORDER = ("trained", "unreached", "frozen", "constant", "buffer", "statistic", "setting")


def weights_table(weights: Sequence[Weight], every: bool = False) -> RenderableType:
    """A row per initializer; those that differ only in the numbers in their names share one.

    Args:
        weights: of :class:`onnxremat.grad.StepSignature`.
        every: a row for each.
    """
    table = plain_table()
    table.add_column("parameter", overflow="fold")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("shape", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("why, and what is tied to it")
    for group in _groups(weights, every):
        first = group[0]
        count = f"{len(group)} x" if len(group) > 1 else ""
        why = first.why + (f"; tied: {', '.join(first.tied)}" if first.tied else "")
        cells = (_name(group), count, _shape(first), first.status, why)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def unsaid_note(weights: Sequence[Weight]) -> str:
    """What a file of PyTorch's older exporter leaves open about the weights that it folded of
    linear and recurrent layers, once for all; "" of other files. Others that it may have computed
    are warned of (:mod:`onnxremat.grad.exported.unsaid`)."""
    names = [w.name for w in weights if w.status == "trained" and w.why == UNSAID]
    names = [name for name in names if name.startswith("onnx::")]
    if not names:
        return ""
    return (
        f"trained under names that PyTorch's older exporter made up: {len(names)} "
        f"({first_of(names, 3)}). It moved the elements of most; a weight that the module scales, "
        "normalises or masks first looks the same, and is trained as what came of that: "
        "onnxremat.check_export compares with the module"
    )


def _groups(weights: Sequence[Weight], every: bool) -> list[list[Weight]]:
    groups: dict[object, list[Weight]] = {}
    for weight in weights:
        if every:
            key: object = weight.name
        else:
            names = tuple(map(_without_numbers, (weight.label or weight.name, weight.why)))
            key = (names, weight.shape, weight.status, tuple(map(_without_numbers, weight.tied)))
        groups.setdefault(key, []).append(weight)
    rank = {status: place for place, status in enumerate(ORDER)}
    return sorted(groups.values(), key=lambda group: rank.get(group[0].status, len(rank)))


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _name(group: Sequence[Weight]) -> str:
    """The name in the framework, with the file's where that is another; numbers that differ
    within the group as stars."""
    first = group[0]
    text = f"{first.label} (in the file {first.name})" if first.label else first.name
    return text if len(group) == 1 else _without_numbers(text)


def _shape(weight: Weight) -> str:
    return " x ".join(map(str, weight.shape)) or "1 number"


def summary(weights: Sequence[Weight]) -> str:
    """One line: how many are what."""
    counts = {status: sum(w.status == status for w in weights) for status in ORDER}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)
