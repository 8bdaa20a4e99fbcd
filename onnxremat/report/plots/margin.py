"""The column of words beside a plot: a key and the facts that would clutter the plot."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from onnxremat.report.plots.figures import QUIET, fit

LINE = 0.225  # inches from line to line
SIGN = 0.23  # inches a sign takes
AFTER = 0.33  # inches from the left edge to the words after a sign


class Margin:
    """Lines of words from top to bottom.

    Args:
        left, right, top: of the column, as shares of the figure.
    """

    def __init__(self, figure: Figure, left: float, right: float, top: float) -> None:
        self.figure, self.left, self.right, self.row = figure, left, right, top
        self._line = LINE / figure.get_figheight()
        self._inch = 1 / figure.get_figwidth()

    def skip(self, lines: float) -> None:
        """Leave room."""
        self.row -= lines * self._line

    def title(self, words: str) -> None:
        """A line in bold."""
        self.words(words, weight="bold")

    def words(self, words: str, figures: str = "", *, indent: bool = False, **style: Any) -> None:
        """A line, and ``figures`` flush right; what is too long loses its middle.

        Args:
            indent: leave room for a sign.
            style: of the words.
        """
        end = self.right
        if figures:
            right = self.figure.text(self.right, self.row, figures, va="center", ha="right")
            end = right.get_window_extent().x0 / self.figure.bbox.x1 - 0.1 * self._inch
        left = self.left + (AFTER * self._inch if indent else 0)
        fit(self.figure.text(left, self.row, words, va="center", **style), end)
        self.skip(1)

    def note(self, words: str) -> None:
        """A smaller, quiet line that belongs to the line above."""
        self.row += 0.18 * self._line
        self.words(words, size=8.5, color=QUIET)

    def swatch(self, words: str, figures: str = "", **style: Any) -> None:
        """A filled box and what it stands for."""
        box = Rectangle(
            (self.left, self.row - 0.32 * self._line), SIGN * self._inch, 0.64 * self._line,
            transform=self.figure.transFigure, linewidth=0, **style,
        )  # fmt: skip
        self.figure.add_artist(box)
        self.words(words, figures, indent=True)

    def stroke(self, words: str, figures: str = "", **style: Any) -> None:
        """A line sign and what it stands for."""
        ends = [self.left, self.left + SIGN * self._inch]
        self.figure.add_artist(Line2D(ends, [self.row, self.row], **style))
        self.words(words, figures, indent=True)

    def marker(self, words: str, figures: str = "", weight: str = "normal", **style: Any) -> None:
        """A marker and what it stands for."""
        centre = self.left + SIGN / 2 * self._inch
        self.figure.add_artist(Line2D([centre], [self.row], linestyle="", **style))
        self.words(words, figures, indent=True, weight=weight)
