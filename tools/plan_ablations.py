"""Each heuristic of the planner, and how it is switched off: `make bench-plan ARGS=--ablate`.

What the search's compiled moves are made of is not here: their shares are constants of the
compiled code (docs/search.md has what was measured of them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from onnxremat.planner import ladder, lazy_cuts, portfolio, relaxed, walks
from onnxremat.planner.any_order import AnyOrder
from onnxremat.planner.cut_places import CutPlaces
from onnxremat.planner.formulations import cut_memory

ROWS = (
    "mobilenet/30%", "resnet50/20%", "resnet50/15%", "bert_12/30%", "bert_48/50%",
    "random_250/80%/fixed", "random_1000/80%/fixed", "bert_48/50%/two",
)  # fmt: skip


@dataclass(frozen=True)
class Ablation:
    """A heuristic.

    Attributes:
        name: short, for the command line.
        what: it does.
        off: switches it off in this process, for good.
    """

    name: str
    what: str
    off: Callable[[], None]


def _set(*tunings: Any, **values: Any) -> Callable[[], None]:
    """Other values for constants, which are frozen for everybody else."""

    def off() -> None:
        for tuning in tunings:
            for name, value in values.items():
                object.__setattr__(tuning, name, value)

    return off


def _replace(owner: Any, name: str, by: Any) -> Callable[[], None]:
    """Something else for a method of a class or a name of a module."""
    return lambda: setattr(owner, name, by)


def _one_depth() -> None:
    for tuning in PORTFOLIOS:
        _set(tuning, depths=tuning.depths[:1], quick=min(1, tuning.quick))()


def _cool() -> None:
    _set(*PORTFOLIOS, heats=(0.6, 0.6))()
    _set(walks.TUNING, near=0.6)()


LAZY, PORTFOLIOS = lazy_cuts.TUNING, (portfolio.ONE_DEVICE, portfolio.SEVERAL)
Lazy, Portfolio = lazy_cuts.LazyCuts, portfolio.Portfolio
ABLATIONS = (
    Ablation("cuts", "lazy cuts as a whole", _replace(Portfolio, "round", lambda self: False)),
    Ablation("chains", "cuts that hold for every order, where one frees many ops",
             _replace(AnyOrder, "_run", lambda *_, **__: None)),
    Ablation("annealing", "annealing as a whole",
             _replace(Portfolio, "anneal", lambda *_, **__: None)),
    Ablation("rules", "checkpoint rules for a first plan", _replace(ladder, "RULES", ())),
    Ablation("depths", "greedy repair in several settings, not one", _one_depth),
    Ablation("cool", "a second, cool walk near the best", _cool),
    Ablation("over", "walks from the cuts' schedules over budget", _set(walks.TUNING, short=0.0)),
    Ablation("rounded", "walks from rounded continuous solutions", _set(walks.TUNING, rounded=0)),
    Ablation("crossed", "walks from crossed schedules", _set(walks.TUNING, crossed=0)),
    Ablation("placing", "cuts placed by the continuous relaxation", _set(LAZY, slow=inf)),
    Ablation("thin", "leaving placed cuts out again",
             _replace(Lazy, "_thin", lambda self, relaxed, least: relaxed)),
    Ablation("exchange", "exchanging placed cuts", _set(LAZY, swapped=0)),
    Ablation("splits", "cuts at second runs", _replace(CutPlaces, "split", lambda *_: False)),
    Ablation("shrink", "repair by smaller budgets", _set(LAZY, shrinks=0)),
    Ablation("repair", "repair by annealing", _set(LAZY, repair=0.0)),
    Ablation("paths", "path rows", _set(relaxed.TUNING, broken=inf)),
    Ablation("holds", "hold rows", _set(relaxed.TUNING, over=inf)),
    Ablation("rounding", "memory rows rounded to the sizes' divisor",
             _replace(cut_memory, "gcd", lambda *_: 1)),
)  # fmt: skip


def switch_off(name: str) -> None:
    """Plan without one of :data:`ABLATIONS`.

    Raises:
        KeyError: no such heuristic.
    """
    {one.name: one for one in ABLATIONS}[name].off()
