"""Sums of gradients that lie side by side, layer by layer, so that neighbours travel together
without being copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

ALIGNED = 64  # bytes that an array starts at a multiple of

Make = Callable[[int], np.ndarray | None]


class Rooms:
    """Arrays of one element type in one stretch of memory, one stretch per type.

    Args:
        arrays: by name; those that are laid out are replaced by views of the stretch, with the same
            values.
        layer: of each that is laid out.
        make: so many bytes, zeros, that begin at a multiple of :data:`ALIGNED`; plain memory where
            it gives none.

    Attributes:
        all: the stretches.
    """

    def __init__(
        self, arrays: dict[str, np.ndarray], layer: Mapping[str, int], make: Make | None = None
    ) -> None:
        self.all: list[np.ndarray] = []
        self._places: dict[int, list[tuple[int, int, int]]] = {}  # layer to (room, begin, end)
        kinds: dict[np.dtype, list[str]] = {}
        for name in sorted(layer, key=lambda name: layer[name]):
            kinds.setdefault(arrays[name].dtype, []).append(name)
        for kind, group in kinds.items():
            places, size = dict[str, int](), 0
            for name in group:
                places[name] = size
                end = size + -(-arrays[name].nbytes // ALIGNED) * ALIGNED
                row = self._places.setdefault(layer[name], [])
                row.append((len(self.all), size // kind.itemsize, end // kind.itemsize))
                size = end
            made = make(size) if make else None
            room = _plain(size) if made is None else made
            self.all.append(_laid_out(arrays, places, room, kind))

    def slices(self, layers: Sequence[int]) -> list[np.ndarray]:
        """The arrays of neighbouring layers, one stretch per element type."""
        found = [place for layer in layers for place in self._places.get(layer, ())]
        return [
            self.all[room][min(b for r, b, _ in found if r == room) : max(
                e for r, _, e in found if r == room)]
            for room in sorted({room for room, _, _ in found})
        ]  # fmt: skip


def _plain(size: int) -> np.ndarray:
    room = np.zeros(size + ALIGNED, np.uint8)
    return room[-room.ctypes.data % ALIGNED :][:size]


def _laid_out(
    arrays: dict[str, np.ndarray], places: Mapping[str, int], room: np.ndarray, kind: np.dtype
) -> np.ndarray:
    """Arrays moved into a stretch of bytes, which is returned as one of elements."""
    for name, place in places.items():
        old = arrays[name]
        arrays[name] = room[place : place + old.nbytes].view(kind).reshape(old.shape)
        np.copyto(arrays[name], old)
    return room.view(kind)
