"""Text as it is given, but for what would steer a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from onnxremat.errors import printable


class LiteralConsole(Console):
    """A rich console that finds no markup in what it prints: of names such as "[/layer]" (an
    error), "[red]x" or "x:0:b" it would make something else. Control characters become "?"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of what is printed; those that move the cursor are rich's own."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)
