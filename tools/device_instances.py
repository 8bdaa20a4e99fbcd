"""Device costs for measuring the planner over several devices, seeded."""

from __future__ import annotations

from random import Random

import numpy as np

from onnxremat.planner.on_devices import Devices, on_devices
from onnxremat.planner.problem import Problem


def two_devices(problem: Problem, *, seed: int = 0, link: float = 0.3) -> Problem:
    """A second device that is faster on some ops and slower on most.

    Three ops in ten take 0.5 to 0.9 of their time there, the others 1.5 to 4 times as long. A
    value of mean size takes ``link`` times the mean op time to copy, larger ones in proportion.
    """
    draw = Random(seed)
    factor = [
        draw.uniform(0.5, 0.9) if draw.random() < 0.3 else draw.uniform(1.5, 4.0)
        for _ in range(problem.ops)
    ]
    seconds = link * problem.cost.mean() * problem.size[0] / problem.size.mean()
    copy = np.broadcast_to(seconds, (2, 2, problem.values))
    return on_devices(problem, Devices(np.concatenate([problem.cost, problem.cost * factor]), copy))


def with_host(problem: Problem, *, link: float = 0.3) -> Problem:
    """One device and host memory that computes nothing: swapping."""
    seconds = link * problem.cost.mean() * problem.size[0] / problem.size.mean()
    copy = np.broadcast_to(seconds, (2, 2, problem.values))
    cost = np.stack([problem.cost[0], np.full(problem.ops, np.inf)])
    return on_devices(problem, Devices(cost, copy, names=("device", "host")))
