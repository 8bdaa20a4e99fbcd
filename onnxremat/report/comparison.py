"""What is said about a result: the lines of the comparison and the statements under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onnxremat.session.process import counted, updates_words
from onnxremat.units import format_bytes, format_seconds

Facts = Mapping[str, Any]
Cell = Callable[[Facts], str]
NOISE = 0.25  # of a time: half of the rounds may lie so far from their median, else it says nothing
UNKNOWN = "too noisy"


@dataclass(frozen=True)
class Line:
    """A line of the comparison: a label and one cell per column, "" where there is none."""

    label: str
    original: Cell
    store_all: Cell
    planned: Cell
    measured: Cell
    ends: bool = False

    def cells(self, facts: Facts) -> list[str]:
        """The line's cells for these facts."""
        columns = (self.original, self.store_all, self.planned, self.measured)
        return [column(facts) for column in columns]


def size(count: Any) -> str:
    """Bytes for people, nothing for None."""
    return "" if count is None else format_bytes(count)


def least(count: int | None) -> str:
    """The same, rounded up: a budget of so many bytes is enough."""
    return "" if count is None else format_bytes(count, up=True)


def signed(share: float | None) -> str:
    """A share with its sign, never ``-0.00%``."""
    return "" if share is None else f"{round(share, 4) + 0.0:+.2%}"


def _nothing(_: Facts) -> str:
    return ""


def _bytes_of(name: str) -> Cell:
    return lambda facts: size(facts.get(name))


def _part_of(name: str, whole: str, words: str = "") -> Cell:
    """A size as a share of another."""

    def cell(facts: Facts) -> str:
        part, base = facts.get(name), facts.get(whole)
        return f"{part / base:.1%}{words}" if part is not None and base else ""

    return cell


def _beside(name: str, facts: Facts) -> int:
    """What is counted beside weights and values of so much: other graphs have other nodes. Files
    may say it of the result alone."""
    whose = BESIDE.get(name, _RESULT)
    return int(facts.get(whose, facts.get(_RESULT)) or 0)


def _process(name: str) -> Cell:
    """What a process takes whose weights and values take so much."""

    def cell(facts: Facts) -> str:
        peak, beside = facts.get(name), _beside(name, facts)
        return "" if peak is None or not beside else least(peak + beside)

    return cell


def _of_budget(name: str) -> Cell:
    """What a process takes whose weights and values take so much, as a share of the budget."""

    def cell(facts: Facts) -> str:
        peak, budget = facts.get(name), facts.get("budget_bytes")
        if peak is None or not budget:
            return ""
        return f"{(peak + _beside(name, facts)) / budget:.1%}"

    return cell


def _reference(facts: Facts) -> str:
    return "reference" if facts.get("overhead_planned") is not None else ""


def change(share: float | None, spread: float | None, *, brief: bool = False) -> str:
    """A measured change of time, and how far half of the rounds lie around it; that alone where it
    is further than the change, and no figure where it is so far that it says nothing.

    Args:
        share: of the time it is compared with.
        spread: in the same measure.
        brief: the change alone, where there is one.
    """
    if share is None:
        return ""
    spread = spread or 0.0
    if spread > NOISE * (1 + share):
        return UNKNOWN
    if 0 < abs(share) <= spread:
        return f"+/- {spread:.1%}"
    return signed(share) + (f" +/- {spread:.1%}" if spread and not brief else "")


def measured_overhead(facts: Facts) -> str:
    """Time against the graph that stores everything, as measured; nothing where it was not."""
    return change(facts.get("overhead_measured"), facts.get("overhead_spread"))


def original_overhead(facts: Facts) -> str:
    """Time against the original's, as measured; nothing where it was not."""
    return change(
        facts.get("overhead_to_original"), _spread_to_original(facts, "overhead_measured")
    )


def _original_overhead(facts: Facts) -> str:
    ratio = facts.get("original_time_ratio")
    return "" if ratio is None else change(ratio - 1, facts.get("original_spread"), brief=True)


def _to_original(name: str = "") -> Cell:
    """Time against the original's, of what takes ``name`` more than the graph that stores all."""

    def cell(facts: Facts) -> str:
        ratio, more = facts.get("original_time_ratio"), facts.get(name) if name else 0.0
        if not ratio or more is None:
            return ""
        return change((1 + more) / ratio - 1, _spread_to_original(facts, name), brief=True)

    return cell


def _spread_to_original(facts: Facts, name: str) -> float:
    """How far a ratio to the original's time may be off: by the share that half of its rounds
    differ by, and by the rounds of the result where ``name`` is its measured time."""
    ratio = facts.get("original_time_ratio") or 1.0
    own = (facts.get("overhead_spread") or 0.0) if name == "overhead_measured" else 0.0
    more = (facts.get(name) or 0.0) if name else 0.0
    return (own + (1 + more) * (facts.get("original_spread") or 0.0) / ratio) / ratio


def _nodes_after(facts: Facts) -> str:
    if facts.get("ops") is None or facts.get("recomputed_ops") is None:
        return ""
    return str(facts["ops"] + facts["recomputed_ops"] + _added(facts))


def _added(facts: Facts) -> int:
    apart = (facts.get("gates") or 0) + (facts.get("pins") or 0)
    return int(facts.get("added_ops") or apart)


def _text_of(name: str) -> Cell:
    return lambda facts: "" if facts.get(name) is None else str(facts[name])


def _baseline(facts: Facts) -> str:
    return "100.0%" if facts.get("baseline_peak_bytes") else ""


_PEAK, _RESULT = "baseline_peak_bytes", "beside_bytes"
# Where the facts say what is beside these; of others they say what is beside the result.
BESIDE = {_PEAK: "baseline_beside_bytes", "store_all_peak_bytes": "store_all_beside_bytes"}
COMPARISON = (
    Line(
        "peak memory", _bytes_of(_PEAK), _bytes_of("store_all_peak_bytes"),
        _bytes_of("peak_predicted_bytes"), _bytes_of("peak_measured_bytes"),
    ),
    Line(
        "of the original's", _baseline, _part_of("store_all_peak_bytes", _PEAK),
        _part_of("peak_predicted_bytes", _PEAK), _part_of("peak_measured_bytes", _PEAK),
    ),
    Line(
        "the process takes", _process(_PEAK), _process("store_all_peak_bytes"),
        _process("peak_predicted_bytes"), _process("peak_measured_bytes"),
    ),
    Line(
        "of the budget", _of_budget(_PEAK), _of_budget("store_all_peak_bytes"),
        _of_budget("peak_predicted_bytes"), _of_budget("peak_measured_bytes"), ends=True,
    ),
    Line(
        "step time", _original_overhead, _reference,
        lambda facts: signed(facts.get("overhead_planned")), measured_overhead,
    ),
    Line(
        "  to the original's",
        lambda facts: "reference" if facts.get("original_time_ratio") else "", _to_original(),
        _to_original("overhead_planned"), _to_original("overhead_measured"), ends=True,
    ),
    Line("nodes", _nothing, _text_of("ops"), _nodes_after, _nothing),
    Line("  recomputed", _nothing, _nothing, _text_of("recomputed_ops"), _nothing),
    Line(
        "  gates and pins", _nothing, _nothing,
        lambda facts: str(_added(facts)) if _nodes_after(facts) else "", _nothing,
    ),
)  # fmt: skip


def statements(facts: Facts) -> list[tuple[str, str]]:
    """The facts that are no comparison, each as a label and words; only what is known."""
    rows = [
        ("budget", _budget_words(facts)),
        ("in parts", _parts_words(facts)),
        ("one run", _but(_seconds(facts.get("step_seconds")), "median")),
        ("times", _noise_words(facts)),
        ("plan", _plan_words(facts)),
        ("proven", _proof_words(facts)),
        ("prediction", _prediction_words(facts)),
        ("default options", _default_words(facts)),
        ("arena", _arena_words(facts)),
        ("weights", size(facts.get("weight_bytes"))),
        ("beside these", beside_words(facts)),
        ("updates", _updates_words(facts)),
        ("outputs", _output_words(facts)),
        ("order", _order_words(facts)),
    ]
    return [(label, words) for label, words in rows if words]


def _budget_words(facts: Facts) -> str:
    words, limit = least(facts.get("budget_bytes")), facts.get("limit_bytes")
    if not words or limit is None:
        return words
    beside = facts.get("beside_bytes")
    more = f" and {format_bytes(beside)} beside them" if beside else ""
    return f"{words}: {format_bytes(limit)} for weights and values{more}"


def _parts_words(facts: Facts) -> str:
    """What a plan of a graph in parts takes beside the whole, which it may be compared with."""
    return _but(
        signed(facts.get("overhead_to_whole")),
        "as planned, of the time of the graph with nothing in parts that stores everything",
    )


def beside_words(facts: Facts) -> str:
    """What a process takes beside weights and values, and what of it the budget leaves out."""
    if facts.get("session_bytes") is None:
        return ""
    left, words = facts.get("not_counted"), counted(facts).words
    return words + (f"{', ' if words else ''}not counted: {', '.join(left)}" if left else "")


def _updates_words(facts: Facts) -> str:
    state, peak = facts.get("state_bytes"), facts.get("peak_predicted_bytes")
    return updates_words(state or 0, peak, facts.get("not_counted") or ()) if peak else ""


def _seconds(count: float | None) -> str:
    return "" if count is None else format_seconds(count)


def _noise_words(facts: Facts) -> str:
    """What stands where a figure would say nothing, in full."""
    shown = {measured_overhead(facts), original_overhead(facts)}
    if UNKNOWN in shown:
        return (
            "not measurable here: the same run took very different times, as on a machine that "
            "does other work, or a run is very short; onnxremat bench repeats it"
        )
    if any(words.startswith("+/- ") for words in shown):
        return "+/- alone: no change that is larger than what half of the rounds differ by"
    return ""


def _but(words: str, more: str) -> str:
    return f"{words}, {more}" if words and more else words


def _plan_words(facts: Facts) -> str:
    words = [str(facts[name]) for name in ("status", "planner") if facts.get(name)]
    if facts.get("plan_seconds") is not None:
        words.append(f"planned in {format_seconds(facts['plan_seconds'])}")
    if (facts.get("rounds") or 1) > 1:
        words.append(f"{facts['rounds']} rounds until the measured peak fitted")
    if facts.get("cost_source"):
        words.append(f"costs {facts['cost_source']}")
    return ", ".join(words)


def staged(facts: Facts) -> str:
    """Which plans a proof is of, where it is not of all."""
    return " that runs each op at most once per stage" if facts.get("bound_staged") else ""


def one_order(facts: Facts) -> str:
    """That a proof is not of every order of ops, where it is known to be of one alone."""
    return " in this order of first runs" if facts.get("bound_any_order") is False else ""


def _proof_words(facts: Facts) -> str:
    if facts.get("bound") is None:
        return ""
    every = " in any order" if facts.get("bound_any_order") else one_order(facts)
    words = f"no plan{staged(facts)} takes less than {signed(facts['bound'])}{every}"
    words += ", of the graph in these parts" if facts.get("fission") or _rows(facts) else ""
    words += f" ({facts['bound_kind']})" if facts.get("bound_kind") else ""
    return _but(words, f"gap {facts['gap']:.3%}" if facts.get("gap") is not None else "")


def _rows(facts: Facts) -> bool:
    """Whether the batch is computed in parts."""
    return tuple(facts.get("split_batch") or ()) not in ((), (1,))


def _prediction_words(facts: Facts) -> str:
    planned, found = facts.get("peak_predicted_bytes"), facts.get("peak_measured_bytes")
    if planned is None or not found:
        return ""
    return f"{signed(planned / found - 1)} against the measured peak"


def _default_words(facts: Facts) -> str:
    peak = facts.get("peak_default_options_bytes")
    if peak is None:
        return ""
    budget = facts.get("limit_bytes") or facts.get("budget_bytes")
    words, share = f"peak {format_bytes(peak)}", _of_budget("peak_default_options_bytes")(facts)
    words += f", {share} of the budget" if share else ""
    words += ": only the planned options keep it" if budget and peak > budget else ""
    original = facts.get("baseline_peak_bytes")
    return words + ("; the original takes less there" if original and peak > original else "")


def _arena_words(facts: Facts) -> str:
    words = [
        f"{format_bytes(facts[name])} {when}"
        for name, when in (
            ("arena_bytes", "held after a run"),
            ("arena_default_options_bytes", "under default options"),
        )
        if facts.get(name) is not None
    ]
    return ", ".join(words)


def _output_words(facts: Facts) -> str:
    if facts.get("changing_outputs"):
        return f"change from run to run without any plan already, {facts['changing_outputs']}"
    words = []
    if facts.get("bit_equal") is not None:
        same = "bit-equal to" if facts["bit_equal"] else "differ from"
        words.append(f"{same} the graph that stores everything")
    worst = facts.get("difference_to_original")
    if facts.get("same_as_original") is False:
        words.append("NOT the original's" + (f", by {worst:.1e}" if worst else ""))
    elif worst is not None:
        equal = facts.get("bit_equal_to_original", not worst)
        words.append(
            "bit-equal to the original" if equal else f"within {worst:.1e} of the original"
        )
    return ", ".join(words)


def _order_words(facts: Facts) -> str:
    words = [
        f"{'as planned' if facts[name] else 'NOT as planned'}{when}"
        for name, when in (
            ("order_kept", ""),
            ("order_kept_default_options", " under default options"),
        )
        if facts.get(name) is not None
    ]
    return ", ".join(words)
