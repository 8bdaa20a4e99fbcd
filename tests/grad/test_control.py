"""Gradients through If, Scan and Loop whose bodies read what is trained, judged by differences."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxremat.errors import OnnxrematError
from onnxremat.grad import differentiate
from onnxremat.graph.bodies import graphs
from onnxremat.ort.offline import optimise
from tests.grad import judge
from tests.toolbox import parse

rng = np.random.default_rng(0)
A, B = (rng.standard_normal((2, 2)).astype(np.float32) for _ in range(2))
ROWS = rng.standard_normal((3, 2, 2)).astype(np.float32)


def verdict(made: onnx.ModelProto, *given: object) -> str:
    return judge.verdict(judge.judged(made, [np.asarray(each) for each in given], stored=False))


# A Scan whose body holds a Loop and an If in an If; the weight is read at every depth.
NESTED = """g (float[2, 2] h0, float[3, 2, 2] x, float[2, 2] w, int64 n, bool c)
    => (float[2, 2] h, float[3, 2, 2] y) <bool go = {1}> {
  h, y = Scan <num_scan_inputs = 1, body = step (float[2, 2] a, float[2, 2] s)
      => (float[2, 2] after, float[2, 2] d) {
    r = Loop(n, go, a) <body = run (int64 i, bool k, float[2, 2] u)
      => (bool l, float[2, 2] v) { l = Identity(k) p = MatMul(u, w) v = Tanh(p) }>
    m = If(c) <then_branch = yes () => (float[2, 2] p) { p = Mul(r, s) },
      else_branch = no () => (float[2, 2] q) {
        f = MatMul(r, w) t = ReduceSum <keepdims = 0> (s) z = Sub(t, t) g = Less(t, z)
        q = If(g) <then_branch = less () => (float[2, 2] e) { e = Sin(f) },
                   else_branch = more () => (float[2, 2] e) { e = Mul(f, s) }>
      }>
    b = Add(m, s) after = Tanh(b) d = Mul(after, a) }>(h0, x) }"""


@pytest.mark.parametrize(("runs", "taken"), [(0, True), (2, False)])
def test_bodies_in_bodies(runs: int, taken: bool) -> None:
    assert verdict(parse(NESTED), A, ROWS, B, runs, taken) == judge.RIGHT


# A counter in the state says which row is read next; the rows are trained.
COUNTER = """g (float[2, 2] h0, float[3, 2, 2] x, int64 n) => (float[2, 2] h, int64 j)
    <bool go = {1}, int64 z = {0}, int64 two = {2}, int64 three = {3}> {
  h, j = Loop(n, go, h0, z) <body = b (int64 i, bool k, float[2, 2] a, int64 p)
      => (bool l, float[2, 2] c, int64 q) {
    l = Identity(k) row = Gather(x, p) m = Mul(a, row) c = Add(m, row)
    o = Add(p, two) q = Mod(o, three) }> }"""


@pytest.mark.parametrize("runs", [0, 1, 5])
def test_integers_in_the_state(runs: int) -> None:
    assert verdict(parse(COUNTER), A, ROWS, runs) == judge.RIGHT


# Rows that two Loops of one count return are added up; how many there are only a run knows.
RETURNED = """g (float[2] h0, float[2, 2] w, int64 n) => (float[1, 2] y, float[2] q)
    <bool go = {1}, int64[1] zero = {0}, int64[1] flat = {-1}, int64[2] pairs = {-1, 2}> {
  h, r = Loop(n, go, h0) <body = b (int64 i, bool k, float[2] a)
      => (bool l, float[2] c, float[2] d) {
    l = Identity(k) m = MatMul(a, w) f = Cast <to = 1> (i) g = Add(m, f) c = Tanh(g)
    d = Mul(a, c) }>
  s = Loop(n, go) <body = o (int64 i, bool k) => (bool l, float[2] d) {
    l = Identity(k) f = Cast <to = 1> (i) d = Mul(f, h) }>
  t = Add(r, s) u = Mul(t, r) v = Reshape(u, flat) p = Reshape(v, pairs)
  y = ReduceMean(p, zero) q = Mul(h, h0) }"""


@pytest.mark.parametrize("runs", [1, 4])
def test_as_many_rows_as_there_were_runs(runs: int) -> None:
    assert verdict(parse(RETURNED), A[0], B, runs) == judge.RIGHT


def test_a_loop_of_more_runs_than_are_written_out() -> None:
    made = parse("""g (float[2] h0, float[2] w) => (float[2] h) <int64 n = {5000}, bool go = {1}> {
      h = Loop(n, go, h0) <body = b (int64 i, bool k, float[2] a) => (bool l, float[2] c) {
        l = Identity(k) m = Mul(a, w) c = Sin(m) }> }""")
    assert verdict(made, np.float32([0.5, 0.7]), np.float32([1.3, 1.6])) == judge.RIGHT


def test_zeros_where_nothing_leads_to_the_loss() -> None:
    """The state that the loss reads does not depend on the other, nor on the rows."""
    made = parse("""g (float[2] h0, float[2] g0, float[3, 2] x) => (float[2] h) {
      h, unread = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] b0, float[2] s)
        => (float[2] c, float[2] d) { c = Sin(a) d = Mul(b0, s) }>(h0, g0, x) }""")
    assert verdict(made, A[0], A[1], ROWS[:, 0]) == judge.RIGHT


KINDS = ("If", "Scan", "Loop")


class Drawn:
    """Draws the nodes of a body of 2 x 2 matrices, with bodies in it."""

    def __init__(self, seed: int) -> None:
        self.rng, self.count = np.random.default_rng(seed), 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def nodes(self, seen: list[str], depth: int) -> tuple[str, str]:
        """Text, and the name of the last result."""
        seen, text = list(seen), ""
        for _ in range(3):
            made, (x, y) = self.name(), self.rng.choice(seen, 2)
            kind = str(self.rng.choice([*(KINDS if depth else ()), "Tanh", "Mul", "MatMul"]))
            if kind in KINDS:
                text += self.held(kind, made, str(x), seen, depth - 1)
            else:
                given = x if kind == "Tanh" else f"{x}, {y}"
                text += f"{made}_ = {kind}({given}) {made} = Sin({made}_) "
            seen.append(made)
        return text, seen[-1]

    def held(self, kind: str, made: str, start: str, seen: list[str], depth: int) -> str:
        """An op with bodies, as text."""
        m, (a, s, i, k) = "float[2, 2]", (self.name() for _ in range(4))
        inside, last = self.nodes([*seen, *(() if kind == "If" else (a,))], depth)
        if kind == "If":
            other, end = self.nodes(seen, depth)
            return f"""{made} = If(c) <then_branch = t () => ({m} {last}) {{ {inside} }},
                else_branch = e () => ({m} {end}) {{ {other} }}> """
        if kind == "Loop":
            return f"""{made} = Loop(n, go, {start}) <body = b (int64 {i}, bool {k}, {m} {a})
                => (bool {k}l, {m} {last}) {{ {k}l = Identity({k}) {inside} }}> """
        inside += f"{s}y = Mul({last}, {s})"
        return f"""{made}, {made}y = Scan <num_scan_inputs = 1, body = b ({m} {a}, {m} {s})
            => ({m} {last}, {m} {s}y) {{ {inside} }}>({start}, x) """


@pytest.mark.parametrize("seed", range(8))
def test_drawn_bodies(seed: int) -> None:
    text, last = Drawn(seed).nodes(["h0", "w"], 2)
    made = parse(f"""g (float[2, 2] h0, float[3, 2, 2] x, float[2, 2] w, int64 n, bool c)
        => (float[2, 2] {last}, float[3, 2, 2] all) <bool go = {{1}}> {{
        {text} hw = Mul(h0, w) all = Mul(hw, x) }}""")
    assert verdict(made, A, ROWS, B, seed % 3, seed % 2 == 0) == judge.RIGHT


GROWING = """g (float[2, 2] x, float[2, 2] w, int64 n) => (float[2, 2] y) <bool go = {1}> {
  h = Loop(n, go, x) <body = b (int64 i, bool k, float[2, 2] a) => (bool l, float[r, 2] c) {
    l = Identity(k) m = MatMul(a, w) c = Concat <axis = 0> (a, m) }>
  t = Transpose(h) y = MatMul(t, h) }"""


def test_what_has_no_size_is_refused() -> None:
    with pytest.raises(OnnxrematError, match="is not known"):
        differentiate(parse(GROWING), loss="mse", optimizer=None, trainable=["w"])


def test_no_zeros_are_held_in_bodies() -> None:
    """onnxruntime folds what only constants enter, also into bodies, and holds it all along."""
    made = parse("""g (float[64, 64] x, bool c, float[64, 64] w) => (float[64, 64] y) {
        y = If(c) <then_branch = t () => (float[64, 64] p) { p = MatMul(x, w) },
          else_branch = e () => (float[64, 64] q) { q = Sin(x) }> }""")
    step = differentiate(made, loss="mse", optimizer=None, trainable=["w", "x"])
    held = [t.ByteSize() for g in graphs(optimise(step, "onnxruntime", None).graph)
            for t in g.initializer]  # fmt: skip
    assert max(held, default=0) < 1000
