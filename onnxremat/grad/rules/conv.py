"""Conv and ConvTranspose. Which formulation is fastest depends on the geometry; the choices
below come from timings of every formulation on the CPU provider (docs/gradients.md)."""

from __future__ import annotations

from dataclasses import replace

from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.host.blocked import by_flipped, flipped_gains
from onnxremat.grad.registry import Cotangents, vjp
from onnxremat.grad.rules.conv_weight import Filters, weight_cotangent
from onnxremat.grad.rules.flipping import flipped
from onnxremat.grad.rules.geometry import Window, window_of
from onnxremat.grad.tape import Shape, Tape

FLIPPED = 3  # most filter elements per cotangent element for which reversing a copy of them pays
SMALL_MAP = 100  # output positions up to which one Gemm over all images beats one per image


@vjp("Conv", variant="default", reads="x0 x1")
def conv(call: Call) -> Cotangents:
    """y = x * w + b. dx = dy convolved with the reversed kernel (or a ConvTranspose, or a Gemm and
    Col2Im), dw = x correlated with dy, db = dy summed over batch and space."""
    return _conv(call, "default")


@vjp("Conv", variant="correlated", reads="x0 x1")
def conv_correlated(call: Call) -> Cotangents:
    """As the default, with depthwise dw as a Conv with one group per image and channel: for
    runtimes whose depthwise convolutions are fast."""
    return _conv(call, "correlated")


@vjp("Conv", variant="portable", reads="x0 x1")
def conv_portable(call: Call) -> Cotangents:
    """As the default without Col2Im, which only the CPU provider has, and without the
    convolutions over blocks for dw, which are in three dimensions."""
    return _conv(call, "portable")


def _conv(call: Call, variant: str) -> Cotangents:
    t, (x, w), dy = call.tape, call.op.inputs[:2], call.dy
    filters = t.shape(w)
    window = window_of(call, t.shape(x)[2:], filters[2:], call.out_shape[2:])
    group = call.attribute("group", 1)
    dx = dw = None
    if call.need(0):
        dx = data_cotangent(call, window, group, columns=variant != "portable")
    if call.need(1):
        dw = weight_cotangent(t, x, dy, Filters(filters, group), window, variant)
    db = t.sum(dy, [0, *window.axes]) if call.need(2) else None
    return [dx, dw, db][: len(call.op.inputs)]


@vjp("ConvTranspose", reads="x0 x1")
def conv_transpose(call: Call) -> Cotangents:
    """y = the transpose of a convolution from y's space to x's, + b. dx = Conv of dy, dw = dy
    correlated with x (the roles of data and cotangent swap), db = dy summed."""
    t, (x, w), dy = call.tape, call.op.inputs[:2], call.dy
    filters = t.shape(w)
    window = _transposed_window(call, t.shape(x)[2:], filters[2:])
    group = call.attribute("group", 1)
    dx = dw = None
    if call.need(0):
        dx = t.op(
            "Conv", dy, w, shape=t.shape(x), strides=window.strides, dilations=window.dilations,
            pads=window.pads, group=group,
        )  # fmt: skip
    if call.need(1):
        dw = weight_cotangent(t, dy, x, Filters(filters, group), window)
    db = t.sum(dy, [0, *window.axes]) if call.need(2) else None
    return [dx, dw, db][: len(call.op.inputs)]


def _transposed_window(call: Call, sizes: Shape, kernel: Shape) -> Window:
    """The window of the convolution whose transpose the node is.

    Raises:
        UnsupportedError: onnxruntime infers another shape than the node makes.
    """
    rank, asked = len(kernel), call.attribute("output_shape")
    call.require_inferred()
    plain = window_of(call, sizes, kernel, sizes)
    window = replace(plain, input=call.out_shape[2:], output=sizes)
    auto = call.attribute("auto_pad", "NOTSET")
    if auto == "NOTSET" and asked is None:
        return window
    if auto == "VALID" and asked is None:
        return replace(window, before=(0,) * rank, after=(0,) * rank)
    extra = call.attribute("output_padding", [0] * rank)
    totals = [
        s * (n - 1) + p + e - o
        for s, n, p, e, o in zip(
            window.strides, sizes, extra, window.extent, window.input, strict=True
        )
    ]
    # onnxruntime gives the odd element to the front unless the padding is SAME_UPPER. A larger
    # result is not cropped: more elements at its end that only the bias reaches.
    totals = [max(0, total) for total in totals]
    small = tuple(total // 2 for total in totals)
    big = tuple(total - total // 2 for total in totals)
    before, after = (small, big) if auto == "SAME_UPPER" else (big, small)
    return replace(window, before=before, after=after)


def data_cotangent(call: Call, window: Window, group: int, *, columns: bool = True) -> str:
    """Cotangent of the data of a convolution; ``columns`` allows Col2Im."""
    t, (x, w), dy = call.tape, call.op.inputs[:2], call.dy
    shape = t.shape(x)
    if _flip_pays(t, dy, w, window, group):
        return _by_flipped_kernel(t, dy, w, shape, window, group)
    if columns and _small(t, dy, window, group):
        return _by_columns(t, dy, w, shape, window)
    return _by_transpose(t, dy, w, shape, window, group)


def _flip_pays(t: Tape, dy: str, w: str, window: Window, group: int) -> bool:
    """Reversing the kernel costs a copy of the weights, ConvTranspose a col2im pass."""
    if set(window.strides) != {1} or min(window.flipped.pads) < 0:
        return False
    if group > 1 or window.taps == 1 or t.size(w) <= FLIPPED * t.size(dy):
        return True
    return flipped_gains(t, dy, w)


def _by_flipped_kernel(t: Tape, dy: str, w: str, shape: Shape, window: Window, group: int) -> str:
    pads, dilations = window.flipped.pads, window.dilations
    if group == 1 and flipped_gains(t, dy, w):
        return by_flipped(t, dy, w, shape, pads=pads, dilations=dilations)
    filters = flipped(t, w, group)
    return t.op("Conv", dy, filters, shape=shape, pads=pads, dilations=dilations, group=group)


def _small(t: Tape, dy: str, window: Window, group: int) -> bool:
    """Few positions per image, where ConvTranspose transposes the filters for each image again."""
    fits = group == 1 and window.rank == 2 and window.taps > 1 and t.dtype(dy) == T.FLOAT
    return fits and window.positions <= SMALL_MAP


def _by_columns(t: Tape, dy: str, w: str, shape: Shape, window: Window) -> str:
    """What each output position gives each input element, one Gemm; then Col2Im adds it up.

    The filters stand on the right, as they are: transposing them for the product costs more than
    transposing its result. That is done as one matrix, by all threads, and then in runs of an
    image's positions: image by image, onnxruntime's Transpose takes longer with two threads than
    with one.
    """
    images, outputs = t.shape(dy)[:2]
    columns = shape[1] * window.taps
    places = t.transpose(t.reshape(dy, (images, outputs, window.positions)), (0, 2, 1))
    made = t.gemm(
        t.reshape(places, (images * window.positions, outputs)), t.reshape(w, (outputs, columns))
    )
    made = t.reshape(t.transpose(made, (1, 0)), (columns, images, window.positions))
    made = t.transpose(made, (1, 0, 2))
    return t.op(
        "Col2Im", made, t.integers(*shape[2:]), t.integers(*window.kernel), shape=shape,
        pads=window.pads, strides=window.strides, dilations=window.dilations,
    )  # fmt: skip


def _by_transpose(t: Tape, dy: str, w: str, shape: Shape, window: Window, group: int) -> str:
    """ConvTranspose; what its output_padding cannot reach (stride 1) is padded with zeros."""
    leftover = window.leftover()
    reach = tuple(min(n, s - 1) for n, s in zip(leftover, window.strides, strict=True))
    missing = [n - r for n, r in zip(leftover, reach, strict=True)]
    made = t.op(
        "ConvTranspose", dy, w,
        shape=(*shape[:2], *(n - m for n, m in zip(shape[2:], missing, strict=True))),
        strides=window.strides, dilations=window.dilations, pads=window.pads, group=group,
        output_padding=reach,
    )  # fmt: skip
    return t.pad(made, [0] * len(shape), [0, 0, *missing])
