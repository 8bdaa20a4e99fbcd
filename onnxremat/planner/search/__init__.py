"""Compiled search over sequences: exact evaluation, greedy insertion, polish and annealing."""

from __future__ import annotations

from onnxremat.planner.search.session import Search, warm_up

__all__ = ["Search", "warm_up"]
