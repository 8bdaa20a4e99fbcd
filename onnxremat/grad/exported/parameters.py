"""Which tensors of a model are trained, and what is said about all others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import onnx

from onnxremat.errors import UsageError
from onnxremat.grad.description import Weight
from onnxremat.grad.exported.absent import absent, further_names, of_folded_norms, stand_ins
from onnxremat.grad.exported.at_rest import still_iterated, still_random
from onnxremat.grad.exported.copied import about_copies
from onnxremat.grad.exported.custom import own_gradients
from onnxremat.grad.exported.detached import stopped_in_one, straight_through, with_stops
from onnxremat.grad.exported.frozen import mark
from onnxremat.grad.exported.given import Given, Parameters, matched, read_given
from onnxremat.grad.exported.left_out import left_out_sums
from onnxremat.grad.exported.marks import Marks, first_of, marks_of
from onnxremat.grad.exported.merged import perhaps_merged
from onnxremat.grad.exported.padding import by_frequency, likely_padding
from onnxremat.grad.exported.provenance import STEPPED, Kind, Origin, origins_of
from onnxremat.grad.exported.quantised import BEFORE, is_quantising, whole_weights
from onnxremat.grad.exported.restored import CORES, Restored
from onnxremat.grad.exported.stored import Stored
from onnxremat.grad.exported.twins import doubts_of, readied
from onnxremat.grad.exported.unfold import apply_restored, find_restored
from onnxremat.grad.exported.unsaid import perhaps_made, unsaid
from onnxremat.grad.tape import FLOATS
from onnxremat.graph.ir import Graph

LEARNED = (Kind.PARAMETER, Kind.FROZEN)


@dataclass(frozen=True)
class Inventory:
    """The initializers of a model, each parameter once.

    Attributes:
        model: with what exporters did to parameters undone.
        restored: what was undone.
        origins: what each floating-point initializer is.
        missing: parameters given that the file does not have, neither by name nor by value.
        merged: initializers that may be several parameters which the exporter merged.
        norms: convolutions that the exporter folded a batch normalization into.
        absent: parameters that the exporter lists and that no tensor to train stands for.
        in_norms: parameters of batch normalizations that were folded into convolutions.
        stand_ins: parameters of operations that the exporter kept for several equal ones.
        padding: rows of zeros in tables of embeddings, which PyTorch may not train.
        passed: nodes through which gradients pass that the module stops.
        cancelled: nodes that add what was subtracted, where the module may stop them.
        halved: parameters whose gradients the module may stop in one of two equal results.
        further: names that the module has for a parameter beside its own.
        chosen: parameters whose values decided what is stored as fixed: comparisons, orders.
        doubts: warnings about what the exporter may have left out or computed.
        folder: where external weights lie.
        halted: parameters that get no gradient, as the module stops it, though it trains them.
        resting: running means of batch normalizations that the module keeps in eval mode.
        regular: parameters, for all that the file says, whose numbers are as code makes them.
    """

    model: onnx.ModelProto
    restored: tuple[Restored, ...]
    origins: Mapping[str, Origin]
    missing: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    in_norms: Collection[str] = ()
    stand_ins: tuple[str, ...] = ()
    padding: Mapping[str, int] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    halved: tuple[str, ...] = ()
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    folder: Path | None = None
    halted: Collection[str] = ()
    resting: Collection[str] = ()
    regular: tuple[str, ...] = ()

    @property
    def learned(self) -> list[str]:
        """Parameters, trained or not."""
        return [name for name, origin in self.origins.items() if origin.kind in LEARNED]

    @property
    def trained(self) -> list[str]:
        """What is trained where nothing else is said."""
        return [name for name, origin in self.origins.items() if origin.kind is Kind.PARAMETER]

    def merged_with(self, name: str) -> list[str]:
        """Parameters that were equal to one, so that what was computed from it may stand for what
        was computed from them."""
        return [e.parameter for e in self.restored if e.how == "use" and e.tensor == name]

    def tied_to(self, name: str) -> tuple[str, ...]:
        """Tensors of the file that are made from a parameter, and its further names."""
        names = (name, *_labels(self.origins[name]))
        return tuple(
            entry.tensor
            for entry in self.restored
            if entry.parameter == name and entry.how == "tie"
        ) + tuple(other for each in names for other in self.further.get(each, ()))


def take_inventory(
    model: onnx.ModelProto, folder: Path | None, parameters: Parameters = None, tie: bool = True
) -> Inventory:
    """Look at every floating-point initializer of a model.

    Args:
        folder: where external weights lie.
        parameters: what the user says is trained, see
            :func:`onnxremat.grad.exported.given.read_given`.
        tie: whether equal tensors of irregular numbers are one parameter.

    Raises:
        UsageError: parameters that cannot be read, or of another model.
    """
    model = readied(model)
    marks = marks_of(model)
    given = None if parameters is None else read_given(parameters)
    if given is not None:
        made = matched(model, folder, given)
        marks = replace(
            marks, folded={**marks.folded, **{n: s for n, s in made.items() if s != (n,)}}
        )
    undone, marks = find_restored(model, folder, marks, tie)
    restored = [e for e in undone if e.how != "fill" or not _learned_zeros(e, given)]
    result, unclear = with_stops(apply_restored(model, restored, folder), marks)
    cores = {e.parameter: e.tensor for e in restored if e.how in CORES}
    told = None if given is None else given.trained
    origins = origins_of(result, folder, marks, cores, told)
    doubts = [*doubts_of(result), *still_random(result), *still_iterated(result)]
    doubts += [*whole_weights(result), *by_frequency(result), *left_out_sums(result)]
    doubts += own_gradients(model) if marks.trained is None else []  # export compares them
    doubts += about_copies(model, folder, restored, origins) if tie and given is None else []
    doubts += unsaid(result, marks, origins, restored) if given is None else []
    return Inventory(
        result,
        tuple(restored),
        origins,
        _missing(given, marks, restored, origins),
        perhaps_merged(result, folder, marks, origins),
        marks.norms,
        *_lost(result, marks, origins, told),
        likely_padding(result, folder, {n for n, o in origins.items() if o.kind is Kind.PARAMETER}),
        unclear,
        straight_through(result),
        stopped_in_one(result, marks),
        further_names(result, marks),
        _chosen(marks, origins),
        tuple(doubts),
        folder,
        marks.halted if given is None else (),
        marks.resting,
        perhaps_made(Stored(result, folder), marks, origins) if given is None else (),
    )


def _chosen(marks: Marks, origins: Mapping[str, Origin]) -> tuple[str, ...]:
    """Parameters whose values decided what the file stores as fixed."""
    stepped = (name for o in origins.values() if o.why == STEPPED for name in _labels(o))
    return tuple(dict.fromkeys((*marks.chosen, *stepped)))


def _lost(
    model: onnx.ModelProto,
    marks: Marks,
    origins: Mapping[str, Origin],
    told: Mapping[str, bool] | None,
) -> tuple[tuple[str, ...], Collection[str], tuple[str, ...]]:
    """Parameters without a tensor to train, which may be of folded normalizations, and those that
    are trained in place of them."""
    if told is not None or marks.trained is not None:
        return (), (), ()
    learned = {n: (n, *_labels(o)) for n, o in origins.items() if o.kind in LEARNED}
    missing = absent(model, marks, learned)
    return (
        missing,
        of_folded_norms(model, marks),
        stand_ins(model, marks, missing) if missing else (),
    )


def _learned_zeros(entry: Restored, given: Given | None) -> bool:
    """The zeros in a vector may be a parameter that is given: one of as many zeros."""
    count = entry.axes[1] - entry.axes[0]
    return given is not None and any(
        value.size == count and not value.any() and given.trained[name]
        for name, value in given.values.items()
    )


def _missing(
    given: Given | None, marks: Marks, restored: Sequence[Restored], origins: Mapping[str, Origin]
) -> tuple[str, ...]:
    """Trained parameters of a list that the file does not have.

    Raises:
        UsageError: it has none of them.
    """
    if given is None:
        return ()
    there = set(origins) | {name for sources in marks.folded.values() for name in sources}
    there |= {entry.parameter for entry in restored}
    there |= {name for origin in origins.values() for name in _labels(origin)}
    wanted = [name for name, trained in given.trained.items() if trained]
    missing = tuple(name for name in wanted if name not in there)
    if len(missing) == len(wanted):
        raise UsageError(
            "the model has none of the parameters given",
            why=f"they are {', '.join(missing[:4])}, ...; it has {', '.join([*origins][:4])}, ...",
            hint="give those of the model that was exported; onnxremat.export keeps their names",
        )
    if missing and not given.values:
        raise UsageError(
            f"the model has no parameter '{missing[0]}' ({len(missing)} of {len(wanted)} given)",
            why="the exporter renamed it or folded it into something else",
            hint="give the state dict or the module, whose values tell; or export with "
            "onnxremat.export",
        )
    return missing


# ---- choose ------------------------------------------------------------------------------------


def choose_parameters(
    graph: Graph,
    inventory: Inventory,
    trainable: Sequence[str] | None,
    freeze: Sequence[str],
) -> tuple[str, ...]:
    """Names of the tensors to train, in the order of the file.

    By default what :class:`Inventory` takes for parameters. With ``trainable``, exactly the
    initializers that match, by their name here or in the framework: a pattern with wildcards those
    that are parameters or buffers, a plain name any initializer or input. ``freeze`` takes away.

    Raises:
        UsageError: a pattern that matches nothing, a name that cannot be trained, or nothing left.
    """
    origins = inventory.origins
    chosen = inventory.trained
    if trainable is not None:
        chosen = _asked_for(graph, inventory, trainable)
    frozen = _frozen(inventory, chosen, freeze)
    chosen = [name for name in chosen if name not in frozen]
    if not chosen:
        raise _nothing_chosen(graph, len(origins))
    return tuple(chosen)


def in_training(
    inventory: Inventory, chosen: Sequence[str], trainable: Sequence[str] | None,
    freeze: Sequence[str],
) -> set[str]:  # fmt: skip
    """Parameters of layers that are in training mode: what is trained, and what the module would
    train if it did not stop gradients (a generator whose images a discriminator is shown)."""
    if trainable is not None or not inventory.halted:
        return {*chosen}
    return {*chosen, *inventory.halted} - _frozen(inventory, inventory.trained, freeze)


def _frozen(inventory: Inventory, chosen: Sequence[str], freeze: Sequence[str]) -> set[str]:
    names = [*dict.fromkeys((*chosen, *inventory.halted))]
    return set(_matching(names, freeze, inventory.origins, "--freeze"))


def _nothing_chosen(graph: Graph, count: int) -> UsageError:
    why = f"the model has {count} floating-point initializers, none of them chosen"
    hint = "name parameters with --trainable PATTERN, or all of them with --parameters FILE"
    if kinds := sorted({op.op_type for op in graph.ops if is_quantising(op.op_type)}):
        why += f"; it is quantised ({', '.join(kinds)})"
        hint = f"{BEFORE}; or {hint}"
    return UsageError("there is nothing to train", why=why, hint=hint)


def _asked_for(graph: Graph, inventory: Inventory, patterns: Sequence[str]) -> list[str]:
    origins = inventory.origins
    open_kinds = (Kind.PARAMETER, Kind.FROZEN, Kind.BUFFER)
    wide = [name for name, origin in origins.items() if origin.kind in open_kinds]
    names = [p for p in patterns if not _is_pattern(p)]
    chosen = set(_matching(wide, [p for p in patterns if _is_pattern(p)], origins, "--trainable"))
    for name in names:
        chosen.update(_named(graph, inventory, name))
    inputs = [name for name in graph.inputs if name in chosen and name not in origins]
    return [name for name in origins if name in chosen] + inputs


def _named(graph: Graph, inventory: Inventory, name: str) -> list[str]:
    """The tensors of a plain name, which have to be trainable."""
    origins = inventory.origins
    found = [n for n, origin in origins.items() if name == n or name in _labels(origin)]
    for each in found:
        if origins[each].kind in (Kind.STATISTIC, Kind.SETTING) and not origins[each].computed:
            raise UsageError(
                f"--trainable '{name}' cannot be trained", why=f"it holds {origins[each].why}"
                if origins[each].kind is Kind.STATISTIC else f"it is {origins[each].why}",
            )  # fmt: skip
    if found:
        return found
    made = next(
        (e for e in inventory.restored if e.tensor == name and e.parameter in origins), None
    )
    if made is not None:
        return [made.parameter]
    if name in graph.tensors and graph.tensors[name].dtype not in FLOATS:
        raise UsageError(
            f"--trainable '{name}' cannot be trained", why="it does not hold floating-point numbers"
        )
    if name in graph.inputs:
        return [name]
    if name in graph.producer:
        op = graph.ops[graph.producer[name]]
        raise UsageError(
            f"--trainable '{name}' cannot be trained",
            why=f"it is computed, by node {op.name} ({op.op_type})",
        )
    raise _no_match(name, list(origins), origins, "--trainable")


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def _labels(origin: Origin) -> list[str]:
    return origin.label.split(", ") if origin.label else []


def _matching(
    names: Sequence[str], patterns: Sequence[str], origins: Mapping[str, Origin], option: str
) -> list[str]:
    def known_as(name: str) -> list[str]:
        return [name, *(_labels(origins[name]) if name in origins else [])]

    for pattern in patterns:
        if not any(fnmatchcase(each, pattern) for n in names for each in known_as(n)):
            raise _no_match(pattern, names, origins, option)
    return [n for n in names if any(fnmatchcase(each, p) for p in patterns for each in known_as(n))]


def _no_match(
    pattern: str, names: Sequence[str], origins: Mapping[str, Origin], option: str
) -> UsageError:
    shown = [n if n not in origins or not origins[n].label else origins[n].label for n in names]
    return UsageError(
        f"{option} '{pattern}' matches no parameter",
        hint=f"parameters are {first_of(shown, 8)}"
        if shown
        else "the model holds no weights; name a floating-point input, if that is to be trained",
    )


# ---- report ------------------------------------------------------------------------------------


def weights_of(
    inventory: Inventory,
    chosen: Collection[str],
    reached: Collection[str],
    connected: Collection[str],
    kept: Collection[str],
) -> tuple[Weight, ...]:
    """What became of every floating-point initializer, with marks of those that stay as they are
    and that what is trained depends on.

    Args:
        chosen: what was to be trained.
        reached: of these, what has a gradient.
        connected: of these, what the loss depends on.
        kept: statistics that the step updates.
    """
    shapes = {t.name: tuple(t.dims) for t in inventory.model.graph.initializer}
    rows, stored = [], Stored(inventory.model, inventory.folder)
    moving = {*reached, *kept}
    for name, origin in inventory.origins.items():
        status, why = _status(name, origin, chosen, reached, connected, kept)
        tied = inventory.tied_to(name)
        # A model may be trained with another dropout, or beside a head that the loss does not see.
        stays = name in connected and name not in moving and origin.kind is not Kind.SETTING
        stays = stays and stored.readable(name)
        known = mark(stored.value(name)) if stays else ""
        rows.append(Weight(name, origin.label, shapes[name], status, why, tied, known))
    return tuple(rows)


def _status(
    name: str,
    origin: Origin,
    chosen: Collection[str],
    reached: Collection[str],
    connected: Collection[str],
    kept: Collection[str],
) -> tuple[str, str]:
    if name in reached:
        return "trained", origin.why if origin.kind is Kind.PARAMETER else "asked for"
    if name in chosen and name in connected:
        return "unreached", "the loss depends on it only through operators without a gradient"
    if name in chosen:
        return "unreached", "the loss does not depend on it"
    if origin.kind is Kind.PARAMETER:
        return "frozen", "as asked for"
    if origin.kind is Kind.STATISTIC and name not in kept:
        return origin.kind.value, "running statistics, used as they are"
    return origin.kind.value, origin.why
