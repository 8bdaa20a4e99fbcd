"""GRU and LSTM; see :mod:`onnxremat.grad.rules.recurrent` for how."""

from __future__ import annotations

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.recurrent import Direction, per_direction, refuse_settings


@vjp("GRU", since=7, reads="x0 x1 x2 x3 x4 x5 y0")
def gru(call: Call) -> Cotangents:
    """z, r = f(.), n = g(Wn x + r (Rn h + c)) or g(Wn x + Rn (r h) + c), h' = (1 - z) n + z h.
    z, r and n of all steps are made again; the cotangent of h goes back step by step.

    Raises:
        UnsupportedError: clipping, or an activation without a slope here.
    """
    rule = _gru_after if call.attribute("linear_before_reset", 0) else _gru_before
    return per_direction(call, 3, ["Sigmoid", "Tanh"], rule)


def _gru_after(d: Direction) -> dict[int, str]:
    """The reset gate after the product with R (linear_before_reset, as PyTorch has it)."""
    t, (f, g) = d.t, d.activations
    data, state = d.from_data(), d.from_state()
    both = f(t, t.add(d.columns(data, 0, 2), d.columns(state, 0, 2)))
    z, r = d.columns(both, 0, 1), d.columns(both, 1, 2)
    recurrent = d.columns(state, 2, 3)
    n = g(t, t.add(d.columns(data, 2, 3), t.mul(r, recurrent)))
    # Slopes of h' in what enters z, r and n, all steps at once.
    of_n = d.masked(t.mul(t.sub(1.0, z), g.slope(t, n)))
    of_both = t.mul(
        t.concat([d.masked(t.sub(d.before, n)), t.mul(of_n, recurrent)], 1), f.slope(t, both)
    )
    slopes = d.by_step(t.concat([of_both, t.mul(of_n, r)], 1))
    keep, outputs, dh = d.by_step(d.passing(z)), d.cotangents_of_y(), d.cotangent_of_last(1)
    hidden: dict[int, str] = {}
    gates: dict[int, str] = {}
    for time in d.backward:
        dh = d.added(dh, outputs[time] if outputs else None)
        assert dh is not None
        hidden[time] = dh
        gates[time] = t.mul(t.concat([dh, dh, dh], 1), slopes[time])
        dh = t.op("Gemm", gates[time], d.r, t.mul(dh, keep[time]), shape=t.shape(dh))
    through = d.whole(gates)
    new = t.mul(d.whole(hidden), of_n)
    da = t.concat([d.columns(through, 0, 2), new], 1)
    assert dh is not None
    return {
        0: t.gemm(da, d.w), 1: d.weight(da, d.x), 2: d.weight(through, d.before),
        3: d.bias(da, through), 5: dh,
    }  # fmt: skip


def _gru_before(d: Direction) -> dict[int, str]:
    """The reset gate before the product with R."""
    t, (f, g), h = d.t, d.activations, d.hidden
    first_two, last = t.slice(d.r, [0], [0], [2 * h]), t.slice(d.r, [0], [2 * h], [3 * h])
    data = d.from_data()
    if d.biases:
        data = t.add(data, d.biases[1])
    both = f(t, d.gemm(d.before, first_two, d.columns(data, 0, 2)))
    z, r = d.columns(both, 0, 1), d.columns(both, 1, 2)
    reset = t.mul(r, d.before)
    n = g(t, d.gemm(reset, last, d.columns(data, 2, 3)))
    bend = f.slope(t, both)
    of_n = d.by_step(d.masked(t.mul(t.sub(1.0, z), g.slope(t, n))))
    of_z = d.by_step(d.masked(t.mul(t.sub(d.before, n), d.columns(bend, 0, 1))))
    of_r = d.by_step(t.mul(d.before, d.columns(bend, 1, 2)))
    resets, keep = d.by_step(r), d.by_step(d.passing(z))
    outputs, dh = d.cotangents_of_y(), d.cotangent_of_last(1)
    gates: dict[int, str] = {}
    new: dict[int, str] = {}
    for time in d.backward:
        dh = d.added(dh, outputs[time] if outputs else None)
        assert dh is not None
        new[time] = t.mul(dh, of_n[time])
        dreset = t.gemm(new[time], last)
        gates[time] = t.concat([t.mul(dh, of_z[time]), t.mul(dreset, of_r[time])], 1)
        direct = t.add(t.mul(dh, keep[time]), t.mul(dreset, resets[time]))
        dh = t.op("Gemm", gates[time], first_two, direct, shape=t.shape(dh))
    dn, dzr = d.whole(new), d.whole(gates)
    da = t.concat([dzr, dn], 1)
    dr = t.concat([d.weight(dzr, d.before), d.weight(dn, reset)], 0)
    assert dh is not None
    return {0: t.gemm(da, d.w), 1: d.weight(da, d.x), 2: dr, 3: d.bias(da, da), 5: dh}


@vjp("LSTM", since=7, reads="x0 x1 x2 x3 x4 x5 x6 x7 y0")
def lstm(call: Call) -> Cotangents:
    """i, o, f = s(.), c' = f c + i g(.), h' = o t(c'). Gates of all steps are made again by two
    Gemms, c step by step from them; the cotangents of h and c go back step by step.

    Raises:
        UnsupportedError: clipping, coupled gates, or an activation without a slope here.
    """
    refuse_settings(call, "input_forget")
    return per_direction(call, 4, ["Sigmoid", "Tanh", "Tanh"], _lstm)


def _lstm(d: Direction) -> dict[int, str]:
    t, (s, g, out) = d.t, d.activations
    iof, new, c = _cells(d)
    before = d.shifted(c, d.first(6))
    i, o, f = (d.columns(iof, k, k + 1) for k in range(3))
    squashed = out(t, c)
    # Slopes: of the gates in the cotangent of c' (of h' for o), of c' in that of h', of c in c'.
    factor = t.concat([new, squashed, before], 1)
    slope = d.masked(t.concat([t.mul(s.slope(t, iof), factor), t.mul(i, g.slope(t, new))], 1))
    inward = d.masked(t.mul(o, out.slope(t, squashed)))
    keep = d.passing(f)
    holes = _peepholes(d)
    if holes is not None:
        of = [d.columns(slope, k, k + 1) for k in range(3)]
        inward = t.add(inward, t.mul(of[1], holes[1]))
        keep = t.add(keep, t.add(t.mul(of[0], holes[0]), t.mul(of[2], holes[2])))
    slopes, inwards, keeps = d.by_step(slope), d.by_step(inward), d.by_step(keep)
    over = None if d.valid is None else d.by_step(t.sub(1.0, d.valid))
    outputs, dh, dc = d.cotangents_of_y(), d.cotangent_of_last(1), d.cotangent_of_last(2)
    zeros = t.filled(0.0, (d.batch, d.hidden), t.dtype(d.x))
    gates: dict[int, str] = {}
    for time in d.backward:
        dh = d.added(dh, outputs[time] if outputs else None) or zeros
        dc = d.added(t.mul(dh, inwards[time]), dc)
        assert dc is not None
        gates[time] = t.mul(t.concat([dc, dh, dc, dc], 1), slopes[time])
        passed = None if over is None else t.mul(dh, over[time])
        dh, dc = d.added(t.gemm(gates[time], d.r), passed), t.mul(dc, keeps[time])
    da = d.whole(gates)
    assert dh is not None
    assert dc is not None
    result = {
        0: t.gemm(da, d.w), 1: d.weight(da, d.x), 2: d.weight(da, d.before), 3: d.bias(da, da),
        5: dh, 6: dc,
    }  # fmt: skip
    if holes is not None:
        met = t.concat([before, c, before], 1)
        result[7] = t.sum(t.mul(d.columns(da, 0, 3), met), [0], keep=True)
    return result


def _peepholes(d: Direction) -> list[str] | None:
    """Weights of the cell in the gates i, o, f, [1, hidden] each."""
    if d.call.input(7) is None:
        return None
    rows = d.part(d.call.op.inputs[7], 0, 1)
    return [d.columns(rows, k, k + 1) for k in range(3)]


def _cells(d: Direction) -> tuple[str, str, str]:
    """Gates i, o, f [rows, 3 * hidden], the new content and the cell after every step."""
    t, (s, g, _) = d.t, d.activations
    entering = d.from_state(d.from_data())
    new, holes = g(t, d.columns(entering, 3, 4)), _peepholes(d)
    cell, cells = d.first(6), {}
    if holes is None:
        iof = s(t, d.columns(entering, 0, 3))
        gain = d.masked(t.mul(d.columns(iof, 0, 1), new))
        gains, keeps = d.by_step(gain), d.by_step(d.passing(d.columns(iof, 2, 3)))
        for time in d.forward:
            cells[time] = cell = t.add(t.mul(keeps[time], cell), gains[time])
        return iof, new, d.whole(cells)
    entered, news = d.by_step(d.columns(entering, 0, 3)), d.by_step(new)
    valid = None if d.valid is None else d.by_step(d.valid)
    gates: dict[int, str] = {}
    for time in d.forward:
        parts = [d.columns(entered[time], k, k + 1) for k in range(3)]
        i = s(t, t.add(parts[0], t.mul(cell, holes[0])))
        f = s(t, t.add(parts[2], t.mul(cell, holes[2])))
        after = t.add(t.mul(f, cell), t.mul(i, news[time]))
        if valid is not None:
            after = t.add(cell, t.mul(t.sub(after, cell), valid[time]))
        o = s(t, t.add(parts[1], t.mul(after, holes[1])))
        gates[time] = t.concat([i, o, f], 1)
        cells[time] = cell = after
    return d.whole(gates), new, d.whole(cells)
