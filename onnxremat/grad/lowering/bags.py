"""EmbeddingBag as PyTorch's exporters write it, a Loop over bags, as sums over rows.

The Loop takes rows from where each bag begins to where it ends, which may be known only as the
model runs: no size in its body is known then, and it has no gradient. What it computes is one of a
few things: the sum, mean or largest of each bag's rows of a table or of given rows, perhaps times a
weight each, perhaps without the rows of a padding word. Which one is tried out: Loop and formula
are run on drawn bags, empty ones among them, and where no formula gives the Loop's results it
stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import ModelError
from onnxremat.grad.lowering.writer import Writer
from onnxremat.graph.ir import Graph, Op, all_nodes, subgraphs
from onnxremat.ort.session import Options, open_session, session_options

T = onnx.TensorProto
KINDS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max"}
DRAWS = 4  # of bags, words and rows
_SEQUENCES = frozenset({"SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase"})
WORDS = 8  # drawn are numbers below this, where no table says how many there are
CLOSE = 1e-5  # of a sum in another order
Known = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Bags:
    """What a Loop over bags computes.

    Attributes:
        count: of bags.
        kind: ``sum``, ``mean`` or ``max``.
        rows: [n, d] of all bags, or the table they are taken from.
        offsets: [count + 1] where bags begin, and the end.
        words: [n] rows of the table, "" where ``rows`` are given.
        weights: [n] factors of the rows, or "".
        keys: [n] words of which one is padding, or "".
        padding: that word.
    """

    count: int
    kind: str
    rows: str
    offsets: str
    words: str = ""
    weights: str = ""
    keys: str = ""
    padding: int = 0


def bags_of_loop(graph: Graph, op: Op, known: Known, runs: int) -> Bags | None:
    """What a Loop computes, None where it is no such Loop.

    Args:
        known: values of what it reads, as far as they are known before the run.
        runs: how often it runs.
    """
    if not runs or _output(graph, op) is None:
        return None
    for bags in _candidates(graph, op, known, runs):
        if _agree(graph, op, known, bags):
            return bags
    return None


def undecided(graph: Graph, op: Op) -> bool:
    """Whether it is too early to say: sizes of what a Loop that takes sums reads come to be known
    as branches before it do."""
    unknown = [n for n in op.reads if graph.tensors[n].shape is None and n in graph.producer]
    makers = {graph.ops[graph.producer[name]].op_type for name in unknown}
    return bool(_kinds(op)) and not makers <= {"Loop", "SplitToSequence"} | _SEQUENCES


def write_bags(w: Writer, bags: Bags) -> None:
    """The nodes of all bags, in place of the Loop."""
    made = _Formula(w, bags).made()
    output = _output(w.graph, w.op)
    assert output is not None
    w("SequenceConstruct" if _is_state(w.op, output) else "Identity", made, to=output)


# ---- the Loop ----------------------------------------------------------------------------------


def _output(graph: Graph, op: Op) -> str | None:
    """The one output that is read: rows of all runs, or a sequence of them that is only joined."""
    read = [name for name in op.writes if graph.readers.get(name) or name in graph.outputs]
    if len(read) != 1:
        return None
    if not _is_state(op, read[0]):
        return read[0]
    begin = graph.producer.get(op.inputs[2 + op.outputs.index(read[0])])
    empty = begin is not None and graph.ops[begin].op_type == "SequenceEmpty"
    joined = read[0] not in graph.outputs and all(
        graph.ops[k].op_type == "ConcatFromSequence"
        and not any(a.i for a in graph.ops[k].node.attribute)  # another axis, or a new one
        for k in graph.readers[read[0]]
    )
    return read[0] if empty and joined else None


def _is_state(op: Op, output: str) -> bool:
    """Whether an output is carried from run to run: a sequence, which is joined after the Loop."""
    return output in op.outputs[: len(op.inputs) - 2]


def _candidates(graph: Graph, op: Op, known: Known, runs: int) -> Iterator[Bags]:
    read = {name: graph.tensors[name] for name in op.reads if not _sequence(graph, name)}
    if any(tensor.shape is None for tensor in read.values()):
        return
    floats = [n for n, t in read.items() if t.dtype in (T.FLOAT, T.DOUBLE) and n not in known]
    tables = [name for name in floats if len(read[name].shape or ()) == 2]
    whole = [
        n for n, t in read.items() if t.dtype in (T.INT32, T.INT64) and len(t.shape or ()) == 1
    ]
    ends = [name for name in whole if _is_rest(graph, name, whole)]
    offsets = [n for n in whole if n not in ends and read[n].shape == (runs + 1,)]
    for kind, table, begin in product(sorted(_kinds(op)), tables, offsets):
        words = [n for n in whole if n not in known and n != begin and n not in ends]
        factors = [n for n in floats if n not in tables]
        if len(words) > 1 or len(factors) > 1:
            return
        word, factor = (found[0] if found else "" for found in (words, factors))
        if word and factor and read[word].shape != read[factor].shape:
            return
        if word:
            yield Bags(runs, kind, table, begin, words=word, weights=factor)
        if word and read[word].shape == read[table].shape[:1]:  # type: ignore[index]
            for number in _numbers(op, known):
                yield Bags(runs, kind, table, begin, weights=factor, keys=word, padding=number)
        yield Bags(runs, kind, table, begin, weights=factor)


def _kinds(op: Op) -> set[str]:
    return {kind for node in _inner(op) if (kind := KINDS.get(node.op_type))}


def _inner(op: Op) -> Iterator[onnx.NodeProto]:
    for body in subgraphs(op.node):
        yield from all_nodes(body)


def _sequence(graph: Graph, name: str) -> bool:
    maker = graph.producer.get(name)
    return maker is not None and graph.ops[maker].op_type == "SequenceEmpty"


def _is_rest(graph: Graph, name: str, whole: list[str]) -> bool:
    """Whether a tensor is another one without its first element."""
    maker = graph.producer.get(name)
    if maker is None or graph.ops[maker].op_type != "Slice":
        return False
    source = graph.ops[maker].inputs[0]
    shapes = [graph.tensors[each].shape or (0,) for each in (source, name)]
    return source in whole and shapes[0][0] == shapes[1][0] + 1


def _numbers(op: Op, known: Known) -> list[int]:
    """Every whole number from 0 that the Loop knows: one may be the padding word."""
    found = [value for value in known.values() if value.size == 1 and value.dtype.kind == "i"]
    for node in _inner(op):
        if node.op_type == "Constant":
            value = helper.get_attribute_value(node.attribute[0])
            if isinstance(value, T):
                value = numpy_helper.to_array(value)
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind == "i":
                found.append(array)
    return sorted({n for value in found if (n := int(value.reshape(()))) >= 0})


# ---- the formula -------------------------------------------------------------------------------


class _Formula:
    """Emits the nodes."""

    def __init__(self, w: Writer, bags: Bags) -> None:
        self.w, self.bags = w, bags
        rows, words = w.shape(bags.rows), w.shape(bags.words) if bags.words else ()
        self.places, self.width = (words or rows)[0], rows[1]
        self.real = w.graph.tensors[bags.rows].dtype

    def made(self) -> str:
        """[count, d]"""
        w, bags = self.w, self.bags
        rows = w("Gather", bags.rows, bags.words) if bags.words else bags.rows
        if bags.weights:
            rows = w("Mul", rows, w("Unsqueeze", bags.weights, w.constant([1])))
        kept = self._kept()
        if bags.keys:
            empty = -np.inf if bags.kind == "max" else 0.0
            column = w.cast(w("Unsqueeze", kept, w.constant([1])), T.BOOL)
            rows = w("Where", column, rows, w.constant(empty, self.real))
        bag = self._bag()
        index = w("Expand", w("Unsqueeze", bag, w.constant([1])), self._size(self.width))
        total = self._scatter(index, rows, (bags.count, self.width))
        if bags.kind == "sum":
            return total
        number = self._scatter(bag, kept, (bags.count,), "add")
        number = w("Unsqueeze", number, w.constant([1]))
        if bags.kind == "mean":
            return w("Div", total, w("Max", number, w.constant(1.0, self.real)))
        some = w("Greater", number, w.constant(0.0, self.real))
        return w("Where", some, total, w.constant(0.0, self.real))

    def _size(self, *rest: int) -> str:
        return self.w.constant([self.places, *rest])

    def _kept(self) -> str:
        """[n] 1 for rows that count, 0 for padding."""
        w, bags = self.w, self.bags
        if not bags.keys:
            return w.constant(np.ones(self.places), self.real)
        word = w.constant(bags.padding, w.graph.tensors[bags.keys].dtype)
        return w.cast(w("Not", w("Equal", bags.keys, word)), self.real)

    def _bag(self) -> str:
        """[n] which bag each row is in: how many begin up to it, but for the first."""
        w, bags = self.w, self.bags
        if bags.count == 1:
            return w.constant(np.zeros(self.places))
        begin = w("Slice", w.cast(bags.offsets, T.INT64), w.constant([1]), w.constant([bags.count]))
        ones = w.constant(np.ones(bags.count - 1))
        zeros = w.constant(np.zeros(self.places + 1))
        steps = w("ScatterElements", zeros, begin, ones, axis=0, reduction="add")
        every = w("CumSum", steps, w.constant(0))
        return w("Slice", every, w.constant([0]), self._size())

    def _scatter(self, index: str, rows: str, shape: tuple[int, ...], how: str = "") -> str:
        """Rows added up (or the largest) per bag, by a kernel of one thread."""
        how = how or ("max" if self.bags.kind == "max" else "add")
        begin = self.w.constant(np.full(shape, -np.inf if how == "max" else 0.0), self.real)
        return self.w("ScatterElements", begin, index, rows, axis=0, reduction=how)


# ---- whether they agree ------------------------------------------------------------------------


def _agree(graph: Graph, op: Op, known: Known, bags: Bags) -> bool:
    """Whether the formula gives the results of the Loop on drawn bags. Of an empty one the formula
    gives 0, as PyTorch does; some Loops give no number, or end the run."""
    model, numbers = _both(graph, op, known, bags), _numbers(op, known)
    try:
        session = open_session(model, session_options(Options(level="disable", threads=1)))
    except ModelError:
        return False
    for seed in range(DRAWS):
        begin = _begin(graph, known, bags, seed)
        drawn = _drawn(graph, model, bags, begin, numbers)
        empty = begin[1:] == begin[:-1]
        try:
            found, wanted = session.run(None, drawn)
        except Exception:  # onnxruntime raises errors of many kinds
            if empty.any():
                continue
            return False
        if found.shape != wanted.shape:
            return False
        none = empty[:, None] & ~np.isfinite(wanted)
        if not (np.isclose(found, wanted, CLOSE, CLOSE) | none).all():
            return False
    return True


def _begin(graph: Graph, known: Known, bags: Bags, seed: int) -> np.ndarray:
    """[count + 1] where bags begin, and the end; in every second draw none is empty."""
    if bags.offsets in known:
        return np.asarray(known[bags.offsets])
    random = np.random.default_rng(seed)
    size = (graph.tensors[bags.words or bags.rows].shape or (0,))[0]
    some = seed % 2 == 0 and size >= bags.count
    drawn = random.choice(np.arange(1, size + (not some)), bags.count - 1, replace=not some)
    return np.concatenate([[0], np.sort(drawn), [size]])


def _both(graph: Graph, op: Op, known: Known, bags: Bags) -> onnx.ModelProto:
    """A model that computes the results of the formula and of the Loop."""
    w = Writer(graph, op, known)
    w("Identity", _Formula(w, bags).made(), to="formula's")
    nodes = list(w.nodes)
    for name in op.reads:
        if _sequence(graph, name):
            nodes.append(graph.ops[graph.producer[name]].node)
    loop = onnx.NodeProto()
    loop.CopyFrom(op.node)
    nodes.append(loop)
    output = _output(graph, op)
    assert output is not None
    join = ("ConcatFromSequence", {"axis": 0}) if _is_state(op, output) else ("Identity", {})
    nodes.append(helper.make_node(join[0], [output], ["loop's"], **join[1]))
    real = graph.tensors[bags.rows].dtype
    stored = [numpy_helper.from_array(np.asarray(known[n]), n) for n in op.reads if n in known]
    given = [n for n in op.reads if n not in known and not _sequence(graph, n)]
    made = helper.make_graph(
        nodes, "bags",
        [helper.make_tensor_value_info(n, graph.tensors[n].dtype, graph.tensors[n].shape)
         for n in given],
        [helper.make_tensor_value_info(n, real, None) for n in ("formula's", "loop's")],
        [*w.initializers, *stored],
    )  # fmt: skip
    opsets = [helper.make_opsetid(domain, version) for domain, version in graph.opsets.items()]
    return helper.make_model(made, opset_imports=opsets, ir_version=max(graph.model.ir_version, 8))


def _drawn(
    graph: Graph, model: onnx.ModelProto, bags: Bags, begin: np.ndarray, numbers: list[int]
) -> dict[str, np.ndarray]:
    """Values of all that the model of both is given.

    Args:
        begin: where bags begin, and the end.
        numbers: that may mean something as a word.
    """
    random = np.random.default_rng(int(begin.sum()))
    drawn = {}
    made: np.ndarray
    for value in model.graph.input:
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if kind.kind == "f":
            made = random.standard_normal(shape)
        elif value.name == bags.words:
            made = random.integers(0, (graph.tensors[bags.rows].shape or (0,))[0], shape)
        elif value.name == bags.offsets:
            made = begin
        elif shape == (bags.count,) and value.name != bags.keys:  # where bags end
            made = begin[1:]
        else:
            some = [bags.padding] * WORDS if bags.keys else numbers
            made = random.choice([*range(WORDS), *some], shape)
        drawn[value.name] = np.asarray(made).astype(kind)
    return drawn
