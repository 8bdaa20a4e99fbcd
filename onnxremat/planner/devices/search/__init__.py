"""Compiled search over schedules of several devices."""

from __future__ import annotations

from onnxremat.planner.devices.search.lists import Lists
from onnxremat.planner.devices.search.session import Search
from onnxremat.planner.semantics import Figures

__all__ = ["Figures", "Lists", "Search"]
