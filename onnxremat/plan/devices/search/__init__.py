"""Compiled search over schedules of several devices."""

from __future__ import annotations

from onnxremat.plan.devices.search.lists import Lists
from onnxremat.plan.devices.search.session import Figures, Search

__all__ = ["Figures", "Lists", "Search"]
