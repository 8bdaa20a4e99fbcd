"""Run any ONNX model within a memory budget, on stock onnxruntime.

import onnxremat
result = onnxremat.optimize("in.onnx", budget="2GiB")
result.save("out.onnx")
session = onnxremat.load("out.onnx")

in.onnx -> Graph -> costs -> Problem -> Plan -> Timeline -> out.onnx -> measured run
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxremat.versions import __version__

if TYPE_CHECKING:
    from onnxremat.api import (
        Method,
        OptimizeResult,
        PlanOptions,
        Settings,
        Training,
        apply,
        check_export,
        compare,
        differentiate,
        export,
        from_torch,
        load,
        load_devices,
        load_pipeline,
        max_batch,
        optimize,
        optimize_devices,
        plan,
        prepare,
        read_plan,
        sweep,
        to_torch,
        verify,
    )
    from onnxremat.training.trainer import Trainer

__all__ = [
    "Method",
    "OptimizeResult",
    "PlanOptions",
    "Settings",
    "Trainer",
    "Training",
    "__version__",
    "apply",
    "check_export",
    "compare",
    "differentiate",
    "export",
    "from_torch",
    "load",
    "load_devices",
    "load_pipeline",
    "max_batch",
    "optimize",
    "optimize_devices",
    "plan",
    "prepare",
    "read_plan",
    "sweep",
    "to_torch",
    "verify",
]


def __dir__() -> list[str]:
    """The API, whether it was used already or not."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


def __getattr__(name: str) -> Any:
    """Import the API on first use: ``import onnxremat`` itself stays instant."""
    if name == "load":  # a process that only runs a model needs no planner
        from onnxremat.session.load import load

        return load
    if name == "Trainer":
        from onnxremat.training.trainer import Trainer

        return Trainer
    if name in __all__:
        from onnxremat import api

        return getattr(api, name)
    raise AttributeError(f"module 'onnxremat' has no attribute '{name}'")
