"""Which values every action of a partitioned model takes, makes and updates, and who is left."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from onnxremat.device.machine import Device, Machine
from onnxremat.rewrite.partition import Copy, Key, Partitioned


@dataclass(frozen=True)
class Traffic:
    """What actions do with values; lists have one entry per action.

    Attributes:
        hands: values that are read and made, as :attr:`Partitioned.uses` has them.
        takes: values bound for one run, with the names they are bound to.
        makes: results that are values of their own.
        updates: results that are written into state.
        shared: the action is a copy within one memory: the value is handed over.
        uses: how often each value is taken, once more where it is a result of the model.
        final: result of the model to the value it is.
        readers: input of the model to the partitions that read it where it lies.
    """

    hands: list[tuple[tuple[Key, ...], tuple[Key, ...]]]
    takes: list[list[tuple[str, Key]]]
    makes: list[list[Key]]
    updates: list[list[Key]]
    shared: list[bool]
    uses: dict[Key, int]
    final: dict[str, Key]
    readers: dict[str, list[tuple[int, Device]]]

    def without(self, settled: Collection[Key]) -> Traffic:
        """The same without values that nobody binds, keeps or counts in a run."""

        def rest(keys: Iterable[Key]) -> tuple[Key, ...]:
            return tuple(key for key in keys if key not in settled)

        return replace(
            self,
            hands=[(rest(reads), rest(writes)) for reads, writes in self.hands],
            takes=[[pair for pair in row if pair[1] not in settled] for row in self.takes],
            makes=[[*rest(row)] for row in self.makes],
            uses={key: count for key, count in self.uses.items() if key not in settled},
        )


def traffic(parts: Partitioned, machine: Machine, updated: Collection[str]) -> Traffic:
    """Look it up, once.

    Args:
        updated: results that are written into state.
    """
    rows = parts.uses
    found = Traffic(
        hands=list(rows),
        takes=[[(key[0], key) for key in reads] for reads, _ in rows],
        makes=[[key for key in writes if key[0] not in updated] for _, writes in rows],
        updates=[[key for key in writes if key[0] in updated] for _, writes in rows],
        shared=[
            isinstance(action, Copy) and machine.link(action.source, action.target).shared
            for action in parts.actions
        ],
        uses={},
        final={},
        readers={},
    )
    final = set(parts.followed.final.items())
    for index, (reads, writes) in enumerate(rows):
        for key in reads:
            found.uses[key] = found.uses.get(key, 0) + 1
        for key in writes:
            found.uses.setdefault(key, 0)
            if key[:2] in final:
                found.final[key[0]] = key
        _add_readers(found, parts, machine, index)
    for key in found.final.values():
        found.uses[key] += 1
    return found


def _add_readers(found: Traffic, parts: Partitioned, machine: Machine, index: int) -> None:
    action = parts.actions[index]
    if isinstance(action, Copy):
        return
    came = {key[0] for key in parts.uses[index][0]}
    for name in action.graph.inputs:
        if name in parts.graph.inputs and name not in came:
            found.readers.setdefault(name, []).append((index, machine.device(action.device)))
