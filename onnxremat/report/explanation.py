"""What a model needs and why, in words: the terminal's page, and the same as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxremat.graph.ir import Op
from onnxremat.pipeline.closed_loop import PINS
from onnxremat.pipeline.limits import Limit
from onnxremat.pipeline.prepared import Prepared
from onnxremat.planner.reasons import Reason
from onnxremat.report.comparison import least
from onnxremat.report.demand import Peak, Subject, Verdict, Way, judge, rows, ways, worst_moment
from onnxremat.report.pages.holders import Holder
from onnxremat.report.tables import plain_table
from onnxremat.session.process import Beside
from onnxremat.units import Budget, format_bytes

READERS = 2  # named per value, and values per op


@dataclass(frozen=True)
class Explanation:
    """What is said about a model.

    Attributes:
        command: ``MODEL`` and the options it was read with, as ``optimize`` takes them.
        asked: the budget that is judged, in bytes of the process; 0 without one.
    """

    subject: Subject
    worst: Peak
    ways: Sequence[Way]
    verdict: Verdict | None
    command: str
    asked: int = 0

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        command: str,
        budget: Budget | None = None,
        memory: int = 0,
        seconds: float = 0.0,
    ) -> Explanation:
        """Explain a prepared model.

        Args:
            budget: to be judged; a share ``x`` is one of the peak that is explained.
            memory: bytes of this machine, for a share of them.
            seconds: to search for the smallest budget, see :class:`Subject`.
        """
        subject = Subject(prepared, seconds)
        worst, found = worst_moment(subject), ways(subject)
        peak = prepared.baseline_peak if prepared.baseline else worst.bytes
        bytes_ = budget.resolve(device_bytes=memory, peak_bytes=peak) if budget else None
        if bytes_ is None:
            return cls(subject, worst, found, None, command)
        share, beside = budget is not None and budget.of_peak, prepared.beside.total
        limit = Limit(bytes_) if share else Limit(max(1, bytes_ - beside), bytes_)
        in_parts = limit.of(prepared.floor.beside.total)
        verdict = judge(subject, peak, found, limit.planned, share=share, in_parts=in_parts)
        return cls(
            subject, worst, found, replace(verdict, share=share), command, limit.asked(beside)
        )

    def process(self, way: Way) -> int:
        """Bytes of a process that runs what a way makes of the model."""
        prepared = self.subject.prepared
        more = prepared.bytes_of_nodes(way.nodes) + way.pins + PINS
        return way.bytes + prepared.beside.total + more

    @property
    def beside(self) -> Beside:
        """What is beside the least that is proven of weights and values."""
        prepared = self.subject.prepared
        return prepared.beside if prepared.in_place else prepared.floor.beside

    @property
    def measured(self) -> int | None:
        """Bytes of a run of the original, where it was measured."""
        made = self.subject.prepared
        return made.baseline_peak if made.baseline else None

    @property
    def forcing(self) -> Op | None:
        """The op that needs most at once, None where all results together need more."""
        why, prepared = self.subject.need.why, self.subject.prepared
        if not isinstance(why, Reason):
            return None
        return prepared.graph.ops[prepared.reduced.index[why.op]]

    @property
    def smallest(self) -> Way:
        """The way with the least bytes of those that are built on paper."""
        return min((w for w in self.ways if w.known != "estimated"), key=lambda way: way.bytes)

    def commands(self) -> list[tuple[str, str]]:
        """What to run next: (command, what it is for). A way that saves values and takes more for
        its nodes has no budget in bytes that those before it do not keep: it is asked for by a
        share."""
        found = []
        least, total = self.worst.bytes, self.worst.bytes + self.subject.prepared.beside.total
        for way in self.ways:
            if way.bytes < least:
                least, process = way.bytes, self.process(way)
                share = f"{ceil(1000 * way.bytes / self.worst.bytes) / 1000:g}x"
                budget = limit(process) if process < total else share
                total = min(total, process)
                text = f"onnxremat optimize {self.command} OUT.onnx --budget {budget}"
                found.append((text + way.options, way.name))
        text = f"onnxremat optimize {self.command} OUT.onnx --budget min"
        found.append((text, "the least memory there is a plan for"))
        found.append((f"onnxremat sweep {self.command}", "what each budget costs in time"))
        return found

    def facts(self) -> dict[str, Any]:
        """All of it as plain data; sizes are bytes."""
        prepared, need, op = self.subject.prepared, self.subject.need, self.forcing
        return {
            "model": prepared.name,
            "ops": len(prepared.graph.ops),
            "target": prepared.settings.target,
            "cost_source": prepared.costs.source,
            "batch_rows": rows(self.subject),
            "weight_bytes": prepared.weights,
            "input_bytes": prepared.graph.input_bytes,
            "beside_bytes": prepared.beside.total,
            "peak_measured_bytes": self.measured,
            "peak": {**asdict(self.worst), "holders": [_held(h) for h in self.worst.holders]},
            "least": {
                "bytes": need.bytes,
                "op": op.name if op else None,
                "why": self.subject.reason,
            },
            "ways": [
                {**asdict(way), "proven": way.proven, "process": self.process(way)}
                for way in self.ways
            ],
            "budget": {**asdict(self.verdict), "budget": self.asked, "limit": self.verdict.budget}
            if self.verdict
            else None,
            "commands": [command for command, _ in self.commands()],
            "notes": list(prepared.notes),
        }

    def page(self) -> RenderableType:
        """All of it for a terminal."""
        parts: list[RenderableType] = [Text(self.subject.prepared.name, style="bold"), self._peak()]
        if self.worst.holders:
            parts += [Text(), Text("largest then", style="bold"), _holders(self.worst.holders)]
        parts += [Text(), Text("what forces it", style="bold"), Text(self._force())]
        parts += [Text(), Text("smallest budgets", style="bold"), self._ways()]
        for note in dict.fromkeys(way.note for way in self.ways if way.note):
            named = ", ".join(way.name for way in self.ways if way.note == note)
            parts.append(Text(f"{named}: {note}"))
        if self.verdict:
            asked = f"budget {format_bytes(self.asked, up=True)}"
            asked += ", more where a plan adds nodes" if self.verdict.share else ""
            asked += f"; {format_bytes(self.verdict.budget)} of it for weights and values: "
            asked += self.verdict.words
            parts += [Text(), Text(asked, style="bold")]
        parts += [Text(), Text("what to run", style="bold"), _commands(self.commands())]
        return Group(*parts)

    def _peak(self) -> Text:
        worst, beside = self.worst, self.subject.prepared.beside
        lines = [f"takes {format_bytes(worst.bytes + beside.total, up=True)}: peak "]
        lines[0] += f"{format_bytes(worst.bytes)} of weights and values, predicted, as onnxruntime "
        lines[0] += "runs it by default"
        if self.measured:
            lines[0] += f" ({format_bytes(self.measured)} measured)"
        if worst.steps:
            when = f"at step {worst.step + 1} of {worst.steps}: {worst.op} ({worst.op_type})"
            lines.append(f"{when}, after {worst.before}" if worst.before else when)
        lines.append(
            f"values {format_bytes(worst.live)}, workspace {format_bytes(worst.scratch)}, weights "
            f"{format_bytes(worst.weights)}"
            + (f", of these {format_bytes(worst.kept)} computed at load" if worst.kept else "")
        )
        lines.append(f"beside weights and values: {beside.words}")
        return Text("\n".join(lines))

    def _ways(self) -> RenderableType:
        """Ways with the budgets they keep."""
        table, more = plain_table(), self.subject.prepared.beside.total
        table.add_column("way", no_wrap=True)
        for name in ("budget", "or", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("known", no_wrap=True)
        table.add_column("proven", no_wrap=True)
        worst = self.worst.bytes
        table.add_row("as it is", least(worst + more), "1.00x", "", "predicted", "")
        for way in self.ways:
            there = way.known != "open"
            table.add_row(
                way.name, least(self.process(way)) if there else "",
                f"{way.bytes / max(1, worst):.2f}x" if there else "",
                f"{way.overhead:+.0%}" if way.overhead else "", way.known,
                "the least" if way.proven else f"not below {format_bytes(way.lower + more)}",
            )  # fmt: skip
        words = "budget: bytes of the process; or: the share of the peak"
        return Group(table, Text(words))

    def _force(self) -> str:
        need, op, prepared = self.subject.need, self.forcing, self.subject.prepared
        words = f"no plan that runs every op whole goes below {format_bytes(need.bytes)}, proven"
        if op is None or not self.subject.alone:
            return f"{words}: {self.subject.reason}"
        parts = []
        for label, names in (("reads", op.reads), ("makes", op.writes)):
            large = [n for n in names if prepared.graph.tensors[n].bytes >= need.bytes // 50]
            large.sort(key=lambda name: -prepared.graph.tensors[name].bytes)
            listed = ", ".join(f"{n} {_bytes(prepared, n)}" for n in large[:READERS])
            listed += f", {len(large) - READERS} more" if len(large) > READERS else ""
            parts += [f"{label} {listed}"] if listed else []
        scratch = prepared.costs.scratch.get(op.name, 0)
        rough = "" if self.measured else ", estimated (--measure measures it)"
        parts += [f"workspace {format_bytes(scratch)}{rough}"] if scratch else []
        parts += [f"weights {format_bytes(prepared.weights)}"] if prepared.weights else []
        return f"{words}, the need of one op: {op.name} ({op.op_type})\n  " + "\n  ".join(parts)


def _bytes(prepared: Prepared, name: str) -> str:
    return format_bytes(prepared.graph.tensors[name].bytes)


def limit(count: int) -> str:
    """A budget of at least so many bytes, as people write it."""
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= 64 * factor:
            return f"{-(-count // factor)}{unit}"
    return str(count)


def asked(source: str, options: Mapping[str, Sequence[str]]) -> str:
    """``MODEL --dim batch=8``: a model and the options it was read with, for a shell."""
    words = [source]
    for name, values in options.items():
        for value in values:
            words += [name, value]
    return shlex.join(words)


def _held(holder: Holder) -> dict[str, Any]:
    return {**asdict(holder), "kind": holder.kind.value}


def _holders(holders: Sequence[Holder]) -> Table:
    table = plain_table()
    for name, justify in (("bytes", "right"), ("value", "left"), ("made by", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    table.add_column("still to be read by", overflow="fold")
    for held in holders:
        shape = "x".join(map(str, held.shape)) if held.shape else ""
        readers = list(held.readers[:READERS])
        more = len(held.readers) - len(readers)
        readers += [f"{more} more"] if more > 0 else []
        last = ", ".join(readers) or (
            "nothing: a result" if held.kind.value == "graph outputs" else "-"
        )
        table.add_row(
            format_bytes(held.bytes), Text(f"{held.tensor} {shape}".strip()), Text(held.producer),
            Text(last),
        )  # fmt: skip
    return table


def _commands(found: Sequence[tuple[str, str]]) -> Text:
    width = max(len(command) for command, _ in found)
    return Text("\n".join(f"{command:{width}s}   # {what}" for command, what in found))
