"""onnxremat inspect FILE: what a model or plan is, and how to open it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxremat.cli import args
from onnxremat.cli.console import Voice, percent, size
from onnxremat.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    import onnx

    from onnxremat.memory.arena import Region
    from onnxremat.ort.session import Options

MOST = 12  # inputs, and outputs, that are shown to people
OF_SESSIONS = (
    "budget_bytes",
    "overhead_planned",
    "bound",
    "gap",
    "bound_any_order",
    "bound_staged",
)
OF_PROCESSES = (  # as the other commands name them; weights as the session keeps them
    "limit_bytes", "beside_bytes", "process_bytes", "peak_predicted_bytes", "peak_measured_bytes",
    "weight_bytes",
)  # fmt: skip
OF_PIPELINES = (
    "objective", "in_flight", "samples_per_second_predicted", "loads_seconds", "max_load_seconds",
    "bound_seconds", "gap", "stages", "rounds",
)  # fmt: skip


def command(
    source: args.Model,
    snippet: Annotated[
        bool, typer.Option("--snippets/--no-snippets", help="Show code that opens the model.")
    ] = True,
    region: Annotated[
        bool,
        typer.Option(
            "--region",
            help="Find the least arena that serves the model, for the code: runs it, in seconds.",
        ),
    ] = False,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Show what a model or plan holds; ready-to-paste code for planned models."""
    from onnxremat import api

    voice = Voice(as_json, quiet)
    if source.suffix == ".json":
        plan = api.read_plan(source)
        facts: dict[str, Any] = {"kind": "plan", **_plan(plan)}
    else:
        facts = _model(source, region)
    if as_json:
        voice.result(facts)
        return
    types = facts.get("types", {})
    for key, value in facts.items():
        if key in ("inputs", "outputs"):
            _values(voice, key, value, types)
        elif key not in ("snippets", "facts", "types"):
            voice.out.print(f"{key:24s} {_shown(key, value)}")
    if snippet and "snippets" in facts:
        for language, code in facts["snippets"].items():
            voice.out.print(f"\n# {language}\n{code}")


def _values(voice: Voice, key: str, names: list[str], types: dict[str, str]) -> None:
    """One line per value; of many the first."""
    voice.out.print(f"{key:24s} {len(names)}")
    for name in names[:MOST]:
        voice.out.print(f"  {name:22s} {types[name]}")
    if len(names) > MOST:
        voice.out.print(f"  and {len(names) - MOST} more (--json lists all)")


def _type(value: onnx.ValueInfoProto) -> str:
    """``float [batch, 64]``, or what else than a tensor it is."""
    from onnx import TensorProto

    from onnxremat.ort.infer import is_fixed

    kind = value.type.WhichOneof("value") or "no type"
    if kind != "tensor_type":
        return kind.removesuffix("_type")
    tensor = value.type.tensor_type
    known = tensor.elem_type in TensorProto.DataType.values()
    element = TensorProto.DataType.Name(tensor.elem_type).lower() if known else "?"
    if not tensor.HasField("shape"):
        return f"{element}, of any shape"
    sizes = [d.dim_param or (d.dim_value if is_fixed(d) else "?") for d in tensor.shape.dim]
    return f"{element} [{', '.join(map(str, sizes))}]"


def _shown(key: str, value: Any) -> str:
    if key.endswith("bytes") and isinstance(value, int):
        return f"{size(value)} ({value} B)"
    if key in ("overhead_planned", "bound", "gap") and isinstance(value, float):
        return percent(value)
    return str(value)


def _plan(plan: Any) -> dict[str, Any]:
    facts = plan.provenance
    return {
        "status": facts.status,
        "planner": facts.planner,
        "budget_bytes": facts.budget,
        "overhead_planned": facts.overhead,
        "bound": facts.bound_overhead,
        "gap": facts.gap,
        "bound_kind": facts.bound_kind,
        "bound_any_order": facts.any_order,
        "bound_staged": facts.staged,
        "steps": len(plan.sequence),
        "recomputed_ops": plan.recomputations,
        "settings": dict(facts.settings),
    }


def _model(source: Path, region: bool) -> dict[str, Any]:
    from onnxremat.graph.onnx_io import read_model
    from onnxremat.ort.offline import weight_bytes
    from onnxremat.rewrite.emit import figures, metadata, unpack
    from onnxremat.session.load import options_of
    from onnxremat.session.snippets import Snippets

    model = read_model(source)
    constants = {t.name for t in model.graph.initializer}
    facts: dict[str, Any] = {
        "kind": "model",
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "ir_version": model.ir_version,
        "opsets": {e.domain or "ai.onnx": e.version for e in model.opset_import},
        "nodes": len(model.graph.node),
        "weight_bytes": weight_bytes(model),
        "inputs": [v.name for v in model.graph.input if v.name not in constants],
        "outputs": [v.name for v in model.graph.output],
        "types": {v.name: _type(v) for v in (*model.graph.input, *model.graph.output)},
    }
    planned = metadata(model)
    if "plan" in planned:
        options = options_of(model)
        facts |= _plan(unpack(planned["plan"]))
        facts["options"] = options.to_json()
        facts["facts"] = told = figures(planned)
        facts |= {key: told[key] for key in OF_PROCESSES if told.get(key) is not None}
        if told.get("in_flight"):
            facts = {key: value for key, value in facts.items() if key not in OF_SESSIONS}
            facts |= {key: told.get(key) for key in OF_PIPELINES}
        least = _region(source, options) if region else None
        facts["snippets"] = Snippets(str(source), options, least).by_language()
        facts |= {"region_bytes": least.bytes} if least else {}
    elif region:
        raise UsageError(f"{source} carries no plan", why="--region is for planned models")
    return facts


def _region(source: Path, options: Options) -> Region:
    from onnxremat.memory.arena import Region
    from onnxremat.session.region import find_region

    found = find_region(source, options)
    if not isinstance(found, Region):
        raise UnsupportedError("there is no such arena", where=str(source), why=found)
    return found
