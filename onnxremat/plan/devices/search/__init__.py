"""Compiled search over schedules: exact evaluation, greedy repair, polish and annealing."""

from __future__ import annotations

from onnxremat.plan.devices.search.session import Figures, Search

__all__ = ["Figures", "Search"]
