"""What the files hold of the parameters, by exporter, whatever is made of them: the table of
docs/exporting.md. ``python -m tests.zoo --files``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.zoo import autograd
from tests.zoo.export import NotExportedError, exported
from tests.zoo.provenance import Index, floats_in, gather
from tests.zoo.registry import Architecture

KINDS = {
    "kept": "under their own name, whole",
    "moved": "elsewhere: renamed, transposed, in constants",
    "copied": "in copies within one tensor",
    "lost": "folded into other values",
}


def held(net: Architecture, exporter: str, folder: Path) -> Counter[str]:
    """How many parameters with a part in the loss are kept, moved, copied and lost.

    Raises:
        NotExportedError: there is no file.
    """
    module = net.module()
    model = exported(net, module, exporter, folder)
    index, arrays = Index(module), floats_in(model)
    stored = {name.split(":", 1)[1]: array for name, array in arrays.items()}
    sources = {name: index.source(array) for name, array in arrays.items()}
    times = [
        gather(index, {n: s}, {n: s.places}, mean=False).times
        for n, s in sources.items()
        if s.owners
    ]
    parameters = dict(module.named_parameters())
    count: Counter[str] = Counter()
    for name, gradient in autograd.gradients(net, module, autograd.norms_of(module)).of.items():
        needed = gradient != 0
        value = parameters[name].detach().numpy()
        same = stored.get(name)
        total = sum((each[name] for each in times), np.zeros(value.shape, int))
        if same is not None and np.array_equal(same, value):
            count["kept"] += 1
        elif not (total[needed] > 0).all():
            count["lost"] += 1
        elif any((each[name] > 1).any() for each in times):
            count["copied"] += 1
        else:
            count["moved"] += 1
    return count


def table(nets: Sequence[Architecture], exporters: Sequence[str], folder: Path) -> str:
    """In Markdown: parameters, and nets that have such."""
    rows = ["| exporter | nets | all kept | " + " | ".join(KINDS) + " |"]
    rows.append("| --- " * (3 + len(KINDS)) + "|")
    for exporter in exporters:
        found = []
        for net in nets:
            try:
                found.append(held(net, exporter, folder))
            except NotExportedError:
                continue
        whole = sum(not any(each[k] for k in ("moved", "copied", "lost")) for each in found)
        cells = []
        for kind in KINDS:
            share = sum(each[kind] for each in found) / sum(each.total() for each in found)
            cells.append(f"{share:.1%} (in {sum(each[kind] > 0 for each in found)} nets)")
        rows.append(f"| {exporter} | {len(found)} | {whole} | " + " | ".join(cells) + " |")
    return "\n".join(rows)
