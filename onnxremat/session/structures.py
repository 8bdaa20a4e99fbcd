"""Bytes that onnxruntime keeps of a graph: its nodes and their kernels, its named values.

A model fitted to what the heap gained when 39 graphs were opened (onnxruntime 1.31, x86-64;
exported convolution nets, transformers and recurrent nets, their training steps, planned files with
blocked layouts; 42 to 3,280 nodes): right to 4 % for each of them, and rounded up. An attribute is
kept up to three times (by the node in the file, by onnxruntime's, by the kernel), which is why a
Conv takes three times what a Relu does. ``make bench-structures`` measures and fits it anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx

from onnxremat.graph.ir import Graph, Op, Role, subgraphs
from onnxremat.graph.unforeseen import SHOWN
from onnxremat.rewrite.pins import PREFIX as PIN

OUTPUT = (
    3500  # bytes of a value that a node makes: its share of node, kernel, plan, frame and trace
)
INPUT = 390
ATTRIBUTE = 520
ELEMENT = 380  # of an attribute that is a list of integers, while it is short
SHORT = 16  # pads, axes, kernels: what a list takes, not its integers
# Of long lists (trees, support vectors, words), most while a session is opened: measured with
# LabelEncoder, Scaler, SVMRegressor and TreeEnsembleRegressor of 200,000 elements.
INTEGER, REAL, WORD = 48, 24, 200  # of a word beside its letters, and blocks of its own
COPIES = 3  # of an attribute that is a tensor
WEIGHT = 1650  # of a weight, beside its bytes
END = 3600  # of an input or output of the graph
LETTER = 9  # of a name, of a listed word
PLACE = 8  # of an index while it is looked up
LETTERS = 40  # of the names of a node that is added, and of what it makes
SAMPLE = 56  # of a sample that is a mean of four: where they are, and their weights
HEAP = 0.725  # logarithm of how many of a row are wanted, to the row's: below, no row is sorted
THREADS = 2  # that structures are counted for
# Operators whose kernels list places, and how many last axes of their indices are one place.
PLACES = {"ScatterElements": 0, "ScatterND": 1, "GatherND": 1}


def graph_bytes(graph: Graph) -> int:
    """What a session of ``graph`` keeps of it, weights and what `load` leaves out aside."""
    weights = [
        name
        for name, tensor in graph.tensors.items()
        if tensor.role is Role.WEIGHT and not name.startswith(SHOWN)
    ]
    ends = END * (len(graph.inputs) + len(graph.outputs))
    return ends + _weights(weights) + sum(op_bytes(op) for op in graph.ops)


def places_bytes(graph: Graph) -> int:
    """What a kernel lists while it runs, not in memory that it asks a session for. The C library
    keeps what is given back for the next, so that the longest list counts."""
    return max((_listed(graph, op) for op in graph.ops if op.standard), default=0)


def _listed(graph: Graph, op: Op) -> int:
    """Where it goes for each of its indices (``scatter.cc``, ``gather_nd.cc``, ``scatter_nd.cc``);
    what an image's samples are made of (``grid_sample.cc``); places of a row that is sorted, one
    row per thread (``topk.cc``); an input without its mean."""
    if op.op_type in PLACES:
        shape = graph.tensors[op.inputs[1]].shape
        return 0 if shape is None else PLACE * math.prod(shape[: len(shape) - PLACES[op.op_type]])
    if op.op_type == "MeanVarianceNormalization":
        return graph.tensors[op.inputs[0]].bytes
    if op.op_type not in ("GridSample", "TopK"):
        return 0
    read, made = (graph.tensors[name].shape for name in (op.inputs[0], op.writes[0]))
    said = {a.name: onnx.helper.get_attribute_value(a) for a in op.node.attribute}
    if not read or not made:
        return 0
    if op.op_type == "GridSample":
        plain = said.get("mode", b"linear") in (b"linear", b"bilinear")
        padded = said.get("padding_mode", b"zeros") == b"zeros"
        return SAMPLE * made[2] * made[3] * (plain and padded and len(made) == 4)
    axis = said.get("axis", -1)
    row, rows = read[axis], math.prod(read) // max(1, read[axis])
    few = made[axis] < 4 or math.log(made[axis]) < HEAP * math.log(row)
    return 0 if few else PLACE * row * min(rows, THREADS)


def node_bytes(graph: Graph) -> int:
    """The same of one of its nodes on average."""
    return sum(map(op_bytes, graph.ops)) // max(1, len(graph.ops))


def op_bytes(op: Op) -> int:
    """What is kept of an op and its bodies; 0 for what `load` leaves out."""
    if op.name.startswith((PIN, SHOWN)):
        return 0
    return _named(op.name, op.inputs, op.outputs) + _inside(op.node)


def copy_bytes() -> tuple[int, int]:
    """What is kept of a node without attributes that makes one value, and of each value that it
    reads."""
    return OUTPUT + LETTER * LETTERS, INPUT


def found_bytes() -> int:
    """What is kept of a small constant that is found as a graph runs: it, and an addition."""
    return WEIGHT + OUTPUT + 2 * INPUT + LETTER * 2 * LETTERS


def bytes_again(graph: Graph, names: Iterable[str]) -> int:
    """The same of ops that are carried out so often, beside what is kept of each once."""
    each = {op.name: op_bytes(op) for op in graph.ops}
    return sum(each[name] for name in names) - sum(each.values())


def _named(name: str, inputs: Iterable[str], outputs: Iterable[str]) -> int:
    made = list(outputs)
    letters = len(name) + sum(map(len, made))
    return OUTPUT * len(made) + INPUT * len(list(inputs)) + LETTER * letters


def _inside(node: onnx.NodeProto) -> int:
    """Of a node's attributes and bodies."""
    elements = sum(map(_elements, node.attribute))
    bodies = sum(_body(body) for body in subgraphs(node))
    return ATTRIBUTE * len(node.attribute) + elements + bodies


def _elements(given: onnx.AttributeProto) -> int:
    """Of what an attribute lists."""
    short = min(SHORT, len(given.ints))
    numbers = ELEMENT * short + INTEGER * (len(given.ints) - short) + REAL * len(given.floats)
    words = WORD * len(given.strings) + LETTER * sum(map(len, given.strings))
    return numbers + words + COPIES * len(given.t.raw_data)


def _body(body: onnx.GraphProto) -> int:
    nodes = sum(_named(n.name, n.input, n.output) + _inside(n) for n in body.node)
    return nodes + _weights(weight.name for weight in body.initializer)


def _weights(names: Iterable[str]) -> int:
    return sum(WEIGHT + LETTER * len(name) for name in names)
