"""Options as tests ask for plans: one thread, and a gap that only optimal plans close."""

from __future__ import annotations

from typing import Any

from onnxremat.planner.options import PlanOptions


def asked(**options: Any) -> PlanOptions:
    """Options with a default for what a test is not about."""
    return PlanOptions(**{"threads": 1, "gap": 1e-5, **options})
