"""Adapters of a frozen model (LoRA and the like), which a file does not tell from a trained one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onnxremat.grad.description import Weight
from onnxremat.grad.marks import first_of

# What peft, diffusers and loralib call the tensors that they add.
_ADDED = re.compile(
    r"(^|[._])(lora_\w+|hada_w\d\w*|lokr_w\d\w*|ia3_l|vera_lambda\w*|b?oft_[rRs])([._]|$)"
)
_SAVED = re.compile(r"(^|\.)modules_to_save(\.|$)")  # peft trains these too
_DECIDED = ("in the list given", "a parameter, says the file", "asked for")


def beside_adapters(rows: Sequence[Weight]) -> list[str]:
    """A warning where adapters are trained together with what they are added to, and nobody said
    so: libraries freeze the latter, which a file does not say."""
    trained = [row for row in rows if row.status == "trained"]
    added = [row.label or row.name for row in trained if _ADDED.search(row.label or row.name)]
    names = {row.label or row.name: row.why for row in trained}
    others = [name for name in names if name not in added and not _SAVED.search(name)]
    decided = any(names[name] in _DECIDED for name in others)
    if not added or not others or decided or any(row.status == "frozen" for row in rows):
        return []
    return [
        f"{len(added)} tensors are those of adapters ({first_of(added, 2)}), and {len(others)} "
        f"others are trained with them ({first_of(others, 2)}), which the module may have frozen, "
        "as the file does not say: --trainable '*lora_*' (or what the adapters are called) trains "
        "them alone; --parameters and onnxremat.export take the module's word"
    ]
