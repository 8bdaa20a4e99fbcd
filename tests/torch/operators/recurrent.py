"""RNN, GRU and LSTM, step by step as the ONNX specification defines them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.torch.node import Node, Operator, Result, Tensor

Function = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, list[Tensor]], list[Tensor]]  # data, states -> states
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _functions(n: Node, directions: int) -> list[list[Function]]:
    """The activations of every direction; alphas and betas go to those that take them."""
    names = [
        name.decode() if isinstance(name, bytes) else name
        for name in n.get("activations", DEFAULTS[n.op] * directions)
    ]
    alphas, betas = list(n.get("activation_alpha", [])), list(n.get("activation_beta", []))
    made: list[Function] = []
    for name in names:
        if name == "HardSigmoid":
            a = alphas.pop(0) if alphas else 0.2
            b = betas.pop(0) if betas else 0.5
            made.append(lambda x, a=a, b=b: torch.clamp(a * x + b, 0, 1))
        else:
            made.append({"Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Relu": torch.relu}[name])
    each = len(DEFAULTS[n.op])
    return [made[each * k : each * (k + 1)] for k in range(directions)]


def _step(n: Node, d: int, functions: list[Function]) -> Step:
    """One step of one direction."""
    w, r, hidden = n[1][d], n[2][d], n[2].shape[-1]
    gates = w.shape[0]
    both = n[3][d] if n.has(3) else torch.zeros(2 * gates, dtype=w.dtype)
    wb, rb = both[:gates], both[gates:]

    def rnn(x: Tensor, states: list[Tensor]) -> list[Tensor]:
        return [functions[0](x @ w.T + wb + states[0] @ r.T + rb)]

    def gru(x: Tensor, states: list[Tensor]) -> list[Tensor]:
        (h,), (f, g) = states, functions
        data, state = x @ w.T + wb, h @ r.T + rb
        z, reset = (f((data + state)[:, k * hidden : (k + 1) * hidden]) for k in (0, 1))
        last = slice(2 * hidden, None)
        if n.get("linear_before_reset", 0):
            new = g(data[:, last] + reset * state[:, last])
        else:
            new = g(data[:, last] + (reset * h) @ r[last].T + rb[last])
        return [(1 - z) * new + z * h]

    def lstm(x: Tensor, states: list[Tensor]) -> list[Tensor]:
        (h, c), (f, g, out) = states, functions
        i, o, forget, new = (x @ w.T + wb + h @ r.T + rb).split(hidden, 1)
        holes = n[7][d].split(hidden) if n.has(7) else [torch.zeros(hidden, dtype=w.dtype)] * 3
        after = f(forget + holes[2] * c) * c + f(i + holes[0] * c) * g(new)
        return [f(o + holes[1] * after) * out(after), after]

    return {"RNN": rnn, "GRU": gru, "LSTM": lstm}[n.op]


def recurrent(n: Node) -> Result:
    """All directions over all steps; states stand still where a sequence is over, outputs are 0,
    and so are the states of a sequence of no step."""
    x, (steps, batch, _), directions = n[0], n[0].shape, n[2].shape[0]
    lengths = n[4].long() if n.has(4) else torch.full((batch,), steps)
    kind = n.get("direction", "forward")
    results: list[list[Tensor]] = []
    for d, functions in enumerate(_functions(n, directions)):
        states = [
            n[5 + k][d] if n.has(5 + k) else torch.zeros(batch, n[2].shape[-1], dtype=x.dtype)
            for k in range(2 if n.op == "LSTM" else 1)
        ]
        step, made = _step(n, d, functions), [states[0]] * steps
        backwards = kind == "reverse" or d == 1
        for time in reversed(range(steps)) if backwards else range(steps):
            runs = (time < lengths).unsqueeze(1)
            after = step(x[time], states)
            states = [torch.where(runs, a, b) for a, b in zip(after, states, strict=True)]
            made[time] = torch.where(runs, states[0], torch.zeros_like(states[0]))
        states = [torch.where((lengths > 0).unsqueeze(1), s, torch.zeros_like(s)) for s in states]
        results.append([torch.stack(made), *states])
    return [torch.stack([r[0] for r in results], 1)] + [
        torch.stack([r[k] for r in results]) for k in range(1, len(results[0]))
    ]


RECURRENT: dict[str, Operator] = dict.fromkeys(("RNN", "GRU", "LSTM"), recurrent)
