"""An answer or a verdict as plain data: what ``place --json`` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from onnxremat.placement.answer import Answer
from onnxremat.placement.calls import Timing
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.judge import Charge, Verdict


def device_rows(graph: PlacementGraph, verdict: Verdict) -> list[dict[str, Any]]:
    """One object per device, accelerators first."""
    stage = {d: i for i, d in enumerate(verdict.order)}
    return [
        {
            "name": name(charge),
            "kind": charge.kind,
            "stage": stage.get(d),
            "load": charge.load,
            "forward": charge.parts[0],
            "backward": charge.parts[1],
            "compute": sum(charge.compute),
            "in": sum(charge.taken),
            "out": sum(charge.sent),
            "bytes": charge.size / graph.unit,
            "limit": graph.memory / graph.unit if charge.kind == "accelerator" else None,
            "nodes": [int(graph.ids[v]) for v in charge.nodes],
        }
        for d, charge in enumerate(verdict.charges)
    ]


def name(charge: Charge) -> str:
    """A device for people."""
    return f"{charge.kind} {charge.number}"


def verdict_facts(graph: PlacementGraph, verdict: Verdict) -> dict[str, Any]:
    """Charges and findings."""
    worst = verdict.bottleneck
    return {
        "bottleneck": name(worst) if worst else None,
        "max_load": verdict.max_load,
        "two_maxima": verdict.two_maxima,
        "contiguous": not verdict.breaks("contiguous"),
        "one_order": not verdict.breaks("one order of devices"),
        "devices": device_rows(graph, verdict),
        "findings": [asdict(finding) for finding in verdict.findings],
    }


def timing_facts(graph: PlacementGraph, timing: Timing) -> dict[str, Any]:
    """When every piece runs, in the order of their starts."""
    return {
        "latency": timing.latency,
        "calls": [
            {
                "accelerator": call.accelerator,
                "start": call.start,
                "finish": call.finish,
                "load": call.load,
                "nodes": [int(graph.ids[v]) for v in call.nodes],
            }
            for call in sorted(timing.calls, key=lambda call: call.start)
        ],
    }


def answer_facts(answer: Answer) -> dict[str, Any]:
    """Value and proof."""
    return {
        "method": answer.method,
        "value": answer.value,
        "bound": answer.bound,
        "bound_by": answer.bound_by,
        "gap": answer.gap,
        "status": answer.status,
        "seconds": answer.seconds,
        "notes": list(answer.notes),
    }
