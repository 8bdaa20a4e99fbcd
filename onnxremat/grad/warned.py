"""What is said about a step: what may not be as the user thinks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence, Set
from typing import TYPE_CHECKING

from onnxremat.errors import UnsupportedError
from onnxremat.grad.description import Weight
from onnxremat.grad.exported.adapters import beside_adapters, low_rank
from onnxremat.grad.exported.marks import first_of, is_nameless
from onnxremat.grad.exported.parameters import Inventory
from onnxremat.grad.exported.quantised import BEFORE, is_quantising
from onnxremat.grad.settings import Settings
from onnxremat.graph.ir import Op, all_nodes, subgraphs

if TYPE_CHECKING:
    from onnxremat.grad.training_mode import Statistic

FEW = 16  # elements up to which one that may be the code's is not worth a warning
STATISTICS = 4  # elements of a named buffer up to which it is not (means of colours)


def nothing_trained(
    ops: Sequence[Op], reach: Set[str], seeds: Collection[str], unsaid: str
) -> UnsupportedError:
    """No parameter has a gradient.

    Args:
        ops: of the forward pass.
        reach: tensors that vary smoothly with parameters.
        seeds: tensors that the loss is made of.
        unsaid: which output was taken without being named, "" for none.
    """
    why, hint = "no operator leads from a parameter to the loss", ""
    if reached := not reach.isdisjoint(seeds):
        why = "the cotangents stop before any parameter"
    elif stops := _stops(ops, reach, seeds):
        through = ", ".join(stops)
        why = (
            f"no gradient goes through {through}, where every way from a parameter to the loss ends"
        )
        hint = "export it without (a model that was quantised: as it was before that)"
    kinds = sorted({op.op_type for op in ops if is_quantising(op.op_type)})
    if kinds:
        why += (
            f"; the model is quantised ({', '.join(kinds)}), and rounding lets no gradient through"
        )
        hint = BEFORE
    elif reached:
        hint = "--loss-output or another loss, if its gradient is not 0 everywhere"
    hint = "; ".join(part for part in (unsaid, hint) if part)
    return UnsupportedError("no parameter gets a gradient", why=why, hint=hint)


def _stops(ops: Sequence[Op], reach: Set[str], seeds: Collection[str]) -> list[str]:
    """Kinds of ops at which gradients end on the way from the loss to parameters."""
    needed, found = set(seeds), set[str]()
    for op in reversed(ops):
        if needed.isdisjoint(op.writes):
            continue
        if reach.isdisjoint(op.writes) and not reach.isdisjoint(op.reads):
            found.add(op.op_type)
        needed.update(op.reads)
    return sorted(found)


def warnings_of(
    inventory: Inventory, rows: Sequence[Weight], resting: Sequence[str]
) -> tuple[str, ...]:
    """What may not be as the user thinks.

    Args:
        resting: BatchNormalization ops that train a scale or bias but use running statistics.
    """
    found = []
    for status, text in (
        ("unreached", "no gradient: {why}"),
        ("constant", "taken for a constant, not trained: {why}"),
        ("buffer", "taken for a buffer, not trained: {why}"),
        ("frozen", "taken for a table that is not trained: {why}"),
        ("setting", "not trained: {why} (listed by --parameters, or --trainable, it is trained)"),
        ("trained", "{why} (optimize=False or onnxremat.export keeps what the module has)"),
    ):
        found += _grouped(inventory, rows, status, text)
    for name in inventory.merged:
        label = inventory.origins[name].label
        found.append(
            f"'{name}'{f' ({label})' * bool(label)} is read by several operators and all its "
            "elements are equal: the exporter may have merged several parameters, which are then "
            "trained as one (export trained weights, or with onnxremat.export)"
        )
    filled = [e.parameter for e in inventory.restored if e.how == "fill"]
    filled = [name for name in filled if not inventory.origins[name].told]
    if filled:
        names = first_of(filled, 3)
        found.append(
            f"{len(filled)} vectors hold zeros between learned numbers, as where an exporter joins "
            f"biases with a buffer: these zeros stay as they are ({names}; where they are a "
            "parameter, --parameters says so)"
        )
    found += _of_norms(inventory, resting)
    if absent := [name for name in inventory.absent if name not in inventory.in_norms]:
        names = first_of(absent, 40)
        found.append(
            f"of the module's parameters {len(absent)} are not in the file under their "
            f"names: {names}: it does not use them, they are tied to others and trained as these, "
            "or the exporter computed with them or took them away (numbers added as 0, times "
            "1, one of two equal operations); optimize=False or onnxremat.export keeps them"
        )
    if inventory.stand_ins:
        names = first_of(inventory.stand_ins, 40)
        found.append(
            f"the exporter made one of equal operations: {names} are trained for these too"
        )
    known = {row.label: row for row in rows} | {row.name: row for row in rows}
    there = ("trained", "constant")
    if chosen := [n for n in inventory.chosen if n not in known or known[n].status in there]:
        found.append(
            f"the exporter compared, ordered or rounded the numbers of {first_of(chosen, 4)} and "
            "stored the result, which stays as it is whatever becomes of these (optimize=False or "
            "onnxremat.export keeps the comparison)"
        )
    trained = {row.name for row in rows if row.status == "trained"}
    if made := [name for name in inventory.regular if name in trained]:
        found.append(
            f"{first_of(made, 4)}: trained, though round numbers, in order, or their own mirror "
            "image, as filters and tables that code makes are; the file does not say what is a "
            "buffer (--freeze keeps one as it is; onnxremat.export says it)"
        )
    found += [*inventory.doubts, *beside_adapters(rows, low_rank(inventory.model))]
    found += _of_stops(inventory)
    if names := first_of(inventory.missing, 6):
        found.append(
            f"of the parameters given {len(inventory.missing)} are not in the file, neither by "
            f"name nor by value (the exporter computed with them): {names}"
        )
    return tuple(found)


def _of_norms(inventory: Inventory, resting: Sequence[str]) -> list[str]:
    """Batch normalizations that do not do what they do in the framework."""
    found = []
    if resting:
        names = first_of(resting, 3)
        found.append(
            f"{len(resting)} batch normalizations keep to their running statistics, because these "
            f"are no initializers of the file: {names}"
        )
    if inventory.norms:
        names = first_of(inventory.norms, 3)
        gone = first_of([n for n in inventory.absent if n in inventory.in_norms], 40)
        found.append(
            f"the exporter folded {len(inventory.norms)} batch normalizations into convolutions "
            f"({names}): these are trained with a bias instead{f' of {gone}' * bool(gone)}; to "
            "keep them, export with onnxremat.export, or as docs/exporting.md says"
        )
    return found


def of_statistics(statistics: Sequence[Statistic], updates: bool) -> list[str]:
    """Batch normalizations whose batch, or whose momentum, is none to train with.

    Args:
        updates: the step moves running statistics.
    """
    found = []
    still = [entry.name for entry in statistics if updates and entry.keep == 1.0]
    if still:
        found.append(
            f"{len(still)} running statistics stay as they are, though their batch normalizations "
            f"use the batch ({first_of(still, 3)}): the file gives the momentum 1, which PyTorch's "
            "exporters write for momentum=None (a mean over all batches) and for 0. The trained "
            "model will predict with the old ones: give the module a momentum before it is exported"
        )
    if lone := [entry.name for entry in statistics if entry.values == 1]:
        found.append(
            f"{len(lone) // 2} batch normalizations get one value per channel "
            f"({first_of(lone[::2], 3)}): they make their bias of it, whatever it is, and nothing "
            "before them learns; PyTorch refuses such a batch. Give the model more rows "
            "(set-batch), or normalise by the running statistics (--batch-norm frozen)"
        )
    return found


def of_bodies(ops: Iterable[Op], trained: Collection[str], settings: Settings) -> list[str]:
    """Normalizations and dropouts in bodies of If, Loop and Scan, which stay as they are for
    inference."""
    nodes = [n for op in ops for body in subgraphs(op.node) for n in all_nodes(body)]
    found = []
    norms = [n for n in nodes if n.op_type == "BatchNormalization"]
    still = [
        n.name for n in norms if settings.batch_norm == "train" and {*n.input[1:3]} & {*trained}
    ]
    if still:
        found.append(
            f"{len(still)} batch normalizations keep to their running statistics, because they lie "
            f"in bodies of If, Loop or Scan: {first_of(still, 3)}"
        )
    idle = [n.name for n in nodes if n.op_type == "Dropout" and settings.dropout]
    if idle:
        found.append(
            f"{len(idle)} dropouts drop nothing, because they lie in bodies of If, Loop or Scan: "
            f"{first_of(idle, 3)}"
        )
    return found


def _of_stops(inventory: Inventory) -> list[str]:
    """Where gradients may pass that the module stops."""
    found = []
    for name, row in inventory.padding.items():
        found.append(
            f"row {row} of '{name}' alone is zeros, as PyTorch keeps the row of padding "
            "(padding_idx), which it does not train: the file does not say so, and it is trained "
            "here (PyTorch's default exporter says it)"
        )
    if inventory.passed:
        names = first_of(inventory.passed, 3)
        found.append(
            f"the module stops gradients (detach) before {names}, the file does not say of which "
            "input: they pass there (optimize=False or onnxremat.export keeps it)"
        )
    if inventory.cancelled:
        names = first_of(inventory.cancelled, 3)
        found.append(
            f"{len(inventory.cancelled)} nodes add what was subtracted just before ({names}), as "
            "x + (y - x).detach() does: the file does not say that gradients stop there, and they "
            "do not (PyTorch's default exporter and onnxremat.export say it)"
        )
    if inventory.halved:
        names = first_of(inventory.halved, 40)
        found.append(
            "the module stops gradients (detach), and the exporter made one of two equal results: "
            f"if the module stops them in one of the two, those of {names} are wrong "
            "(optimize=False or onnxremat.export keeps both)"
        )
    return found


def _grouped(inventory: Inventory, rows: Sequence[Weight], status: str, text: str) -> list[str]:
    """One line per reason, with the names it is about; nothing about what the file or the user
    says itself."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        origin = inventory.origins[row.name]
        guessed = status == "unreached" or (not origin.told and row.why == origin.why)
        if status == "trained":
            guessed = origin.computed
        named = STATISTICS if status == "buffer" else int(status != "unreached")
        least = FEW if is_nameless(row.name) else named
        known = status in ("trained", "frozen") or origin.computed
        if row.status == status and guessed and (known or math.prod(row.shape) > least):
            why = row.why.split(", with '", 1)[0]
            groups.setdefault(why, []).append(row.label or row.name)
            groups[why] += inventory.merged_with(row.label) if origin.computed else []
    # What is not trained as the module does is named one by one; of guesses a few do.
    most = 40 if status == "trained" else 4
    return [
        f"{', '.join(names[:most])}{f' and {len(names) - most} more' * (len(names) > most)}: "
        + text.format(why=why)
        for why, names in ((why, [*dict.fromkeys(names)]) for why, names in groups.items())
    ]
