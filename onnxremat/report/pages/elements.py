"""What the pages have in common: one frame, their looks, tables, and how they were made."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from onnxremat.graph.atomic import atomic
from onnxremat.report.suffix import check_suffix
from onnxremat.versions import versions

HELD = 12  # values listed at a moment
AGAIN = 20  # recomputed ops listed
READERS = 3  # named per value


@dataclass(frozen=True)
class Moments:
    """A chart over time, and a list of what is held that follows the moment chosen there.

    Attributes:
        chart: an ``svg`` element ``chart`` with a line ``cursor``.
        key: its colours and lines, as items of a list.
        slider: its least and largest value, and that of the moment shown at first.
        words: of that moment.
        heads: of the list, bytes first.
        rows: of that moment.
        data: what the script reads, as JSON.
        script: file that tells ``follow.js`` what a moment is.
        listed: heading of the list.
    """

    chart: str
    key: str
    slider: tuple[int, int, int]
    words: str
    heads: Sequence[str]
    rows: Iterable[Sequence[str]]
    data: str
    script: str
    listed: str = "What is in memory"


Sections = Sequence[tuple[str, str]]  # headings, and what stands below


@dataclass(frozen=True)
class Frame:
    """A page: words, a chart over time, words."""

    title: str
    lead: str
    before: Sections
    heading: str  # of the chart
    moments: Moments
    after: Sections

    def html(self) -> str:
        """The whole page, in one file."""
        shown = self.moments
        low, high, at = shown.slider
        return Template(_read("frame.html")).substitute(
            title=escape(self.title),
            style=_read("style.css"),
            lead=self.lead,
            before=_sections(self.before),
            chart=f"<h2>{self.heading}</h2>\n{shown.chart}",
            key=shown.key,
            low=low,
            high=high,
            at=at,
            listed=shown.listed,
            moment=escape(shown.words),
            heads=_cells(shown.heads, "th", shown.heads),
            held="".join(f"<tr>{_cells(row, 'td', shown.heads)}</tr>" for row in shown.rows),
            after=_sections(self.after),
            data=shown.data.replace("<", "\\u003c"),  # safe inside a script element
            script=_read("follow.js") + _read(shown.script),
        )

    def write(self, path: Path) -> None:
        """Write the page.

        Raises:
            UsageError: not ``.html``, or the folder is not writable.
        """
        check_suffix(path, (".html",))
        text = self.html()
        with atomic(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _read(name: str) -> str:
    return files("onnxremat.report").joinpath(name).read_text("utf-8")


def _sections(parts: Sections) -> str:
    return "".join(f"\n<h2>{heading}</h2>\n{html}\n" for heading, html in parts if html)


def _cells(row: Sequence[str], tag: str, heads: Sequence[str]) -> str:
    """Cells of the list: bytes first. Each knows its head, which a phone shows beside it."""
    made = []
    for place, (text, head) in enumerate(zip(row, heads, strict=True)):
        style = ' class="number"' if place == 0 else ""
        made.append(f'<{tag}{style} data-head="{escape(head)}">{escape(text)}</{tag}>')
    return "".join(made)


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


def made_here(what: str, command: Sequence[str]) -> str:
    """The command that made a file, or makes such a one again, and the versions here."""
    here = ", ".join(f"{name} {found}" for name, found in versions().items())
    return (
        f"<p>To make {escape(what)} again:</p>"
        f"<pre>{escape(shlex.join(command))}</pre>"
        f'<p class="quiet">This page: {escape(here)}.</p>'
    )
