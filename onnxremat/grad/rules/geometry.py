"""The numbers of a convolution or pooling window, for any count of spatial axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from onnxremat.grad.call import Call
from onnxremat.grad.tape import Shape


@dataclass(frozen=True)
class Window:
    """A window sliding over an input.

    Attributes:
        input, output, kernel: sizes of the spatial axes.
        strides, dilations: per spatial axis.
        before, after: zeros around the input per spatial axis.
    """

    input: Shape
    output: Shape
    kernel: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    after: Shape

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def axes(self) -> range:
        """Spatial axes of an [N, C, ...] tensor."""
        return range(2, 2 + self.rank)

    @property
    def extent(self) -> Shape:
        """Size of the dilated kernel."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel, strict=True))

    @property
    def padded(self) -> bool:
        """Whether there are zeros around the input (or parts cropped)."""
        return any(self.before) or any(self.after)

    @property
    def dense(self) -> bool:
        """Stride and dilation 1 everywhere."""
        return set(self.strides) <= {1} and set(self.dilations) <= {1}

    @property
    def positions(self) -> int:
        """Number of places of the window."""
        return math.prod(self.output)

    @property
    def taps(self) -> int:
        """Number of elements of the kernel."""
        return math.prod(self.kernel)

    @property
    def tiles(self) -> bool:
        """Windows side by side without gaps, overlaps or padding."""
        return self.kernel == self.strides and not self.padded and set(self.dilations) <= {1}

    @property
    def flipped(self) -> Window:
        """What slides over the output at stride 1: the element of the kernel that comes last is met
        first. Negative padding where it would have to begin inside."""
        before = tuple(e - 1 - p for e, p in zip(self.extent, self.before, strict=True))
        after = tuple(e - 1 - q for e, q in zip(self.extent, self.after, strict=True))
        return replace(self, input=self.output, output=self.input, before=before, after=after)

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """Index of every element of the kernel, in memory order."""
        return product(*(range(k) for k in self.kernel))

    def leftover(self) -> Shape:
        """Input elements after the last window, per axis (output_padding of the transpose)."""
        return tuple(
            n + p + q - s * (o - 1) - e
            for n, p, q, s, o, e in zip(
                self.input, self.before, self.after, self.strides, self.output, self.extent,
                strict=True,
            )
        )  # fmt: skip

    @property
    def pads(self) -> list[int]:
        """As the ONNX attribute."""
        return [*self.before, *self.after]


def window_of(call: Call, sizes: Shape, kernel: Shape, output: Shape) -> Window:
    """The window of a Conv or pooling node, with auto_pad and missing attributes resolved.

    Raises:
        UnsupportedError: SAME padding would have to cut off at both ends.
    """
    rank = len(kernel)
    strides = tuple(call.attribute("strides", [1] * rank))
    dilations = tuple(call.attribute("dilations", [1] * rank))
    pads = call.attribute("pads", [0] * 2 * rank)
    before, after = tuple(pads[:rank]), tuple(pads[rank:])
    auto = call.attribute("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            (o - 1) * s + d * (k - 1) + 1 - n
            for o, s, d, k, n in zip(output, strides, dilations, kernel, sizes, strict=True)
        ]
        if min(totals) < -1:  # onnxruntime cuts off, at other places in each of its kernels
            raise call.unsupported(
                f"its strides are longer than its window, and 'auto_pad' = {auto} does not say "
                "where the first window begins"
            )
        totals = [max(0, total) for total in totals]
        small = tuple(total // 2 for total in totals)
        big = tuple(total - total // 2 for total in totals)
        before, after = (small, big) if auto == "SAME_UPPER" else (big, small)
    elif auto == "VALID":
        before = after = (0,) * rank
    return Window(sizes, output, kernel, strides, dilations, before, after)
