"""What the pages have in common: their looks, tables, and how they were made."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from onnxremat.versions import versions

HELD = 12  # values listed at a moment
AGAIN = 20  # recomputed ops listed


def style() -> str:
    """The style sheet."""
    return files("onnxremat.report").joinpath("style.css").read_text("utf-8")


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0, name: str = ""
) -> str:
    """A table of a class, its last ``numbers`` columns right-aligned."""

    def cells(row: Sequence[str], tag: str) -> str:
        first = len(row) - numbers
        made = []
        for i, text in enumerate(row):
            style = ' class="number"' if i >= first else ""
            made.append(f"<{tag}{style}>{escape(text)}</{tag}>")
        return "".join(made)

    head = f"<thead><tr>{cells(heads, 'th')}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="scroll"><table class="{name}">{head}<tbody>{body}</tbody></table></div>'


def made_here(source: str, command: Sequence[str]) -> str:
    """The command that makes such a file again, and the versions here."""
    here = ", ".join(f"{name} {found}" for name, found in versions().items())
    return (
        f"<p>To make it again, of {escape(source)}'s original:</p>"
        f"<pre>{escape(shlex.join(command))}</pre>"
        f'<p class="quiet">This page: {escape(here)}.</p>'
    )
