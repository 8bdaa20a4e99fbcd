"""Planner over several devices and over swapping."""

from __future__ import annotations

from onnxremat.planner.devices.ladder import solve_devices, warm_up
from onnxremat.planner.devices.lift import Given, copy_seconds, from_problem
from onnxremat.planner.devices.makespan import Timing, makespan, timing
from onnxremat.planner.devices.problem import (
    DeviceProblem,
    InvalidScheduleError,
    Schedule,
    Step,
    occupancy,
    peaks,
    seconds,
)
from onnxremat.planner.devices.solution import DeviceSolution

__all__ = [
    "DeviceProblem",
    "DeviceSolution",
    "Given",
    "InvalidScheduleError",
    "Schedule",
    "Step",
    "Timing",
    "copy_seconds",
    "from_problem",
    "makespan",
    "occupancy",
    "peaks",
    "seconds",
    "solve_devices",
    "timing",
    "warm_up",
]
