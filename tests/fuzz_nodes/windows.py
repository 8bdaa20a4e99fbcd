"""Operators with windows: convolutions, pooling, resizing, sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz_nodes.draw import MS, Array, Draw, Node, draws, wholes

SIDES = ("SAME_UPPER", "SAME_LOWER", "VALID")


def _padded(d: Draw, most: list[int]) -> dict[str, Any]:
    """Padding by a name, by numbers up to ``most`` per axis, or none."""
    kind = d.random.random()
    if kind < 0.3:
        return {"auto_pad": d.of(SIDES)}
    if kind < 0.8:
        return {"pads": [d.whole(0, side) for _ in range(2) for side in most]}
    return {}


@draws("MaxPool AveragePool LpPool")
def pool(d: Draw, op: str) -> Node:
    image = (d.whole(1, 2), d.whole(1, 3), *d.shape(2, 9, 1, 3))
    kernel = [d.whole(1, min(4, size)) for size in image[2:]]
    opset = d.of((11, 18, 19, 22) if op != "LpPool" else (18, 22))
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    attributes |= d.some(strides=d.wholes(1, 4, len(kernel)))
    attributes |= _padded(d, [side - 1 for side in kernel])
    if op == "LpPool":
        attributes["p"] = d.whole(1, 3)
    if op != "AveragePool" or opset >= 19:
        attributes |= d.some(dilations=d.wholes(1, 2, len(kernel))) if d.chance(0.6) else {}
    attributes |= d.some(ceil_mode=1) if d.chance(0.8) else {}
    if op == "AveragePool":
        attributes |= d.some(count_include_pad=1)
    saved = op == "MaxPool" and d.chance(0.3)
    order = d.some(storage_order=d.whole(0, 1)) if saved else {}
    return Node(op, [d.normal(*image)], attributes | order, opset, 2 if saved else 1)


@draws("GlobalAveragePool GlobalMaxPool GlobalLpPool")
def whole_image(d: Draw, op: str) -> Node:
    x = d.normal(d.whole(1, 2), d.whole(1, 2), *d.shape(most=3))
    return Node(op, [x], d.some(p=d.whole(1, 3)) if op == "GlobalLpPool" else {}, 13)


def _convolution(d: Draw, op: str) -> tuple[list[Array | None], dict[str, Any]]:
    rank, group = d.whole(1, 3), d.of((1, 1, 2, 3))
    channels, made = group * d.whole(1, 3), group * d.whole(1, 3)
    kernel = d.wholes(1, 3, rank)
    attributes = d.some(strides=d.wholes(1, 3, rank), dilations=d.wholes(1, 2, rank))
    attributes |= d.some(kernel_shape=kernel) | _padded(d, [d.whole(0, 4) for _ in kernel])
    if group > 1 or d.chance(0.2):
        attributes["group"] = group
    x = d.normal(d.whole(1, 3), channels, *d.wholes(3, 9, rank))
    inputs: list[Array | None] = [x, d.normal(made, channels // group, *kernel)]
    return [*inputs, d.normal(made) if d.chance(0.5) else None], attributes


@draws("Conv")
def convolution(d: Draw, op: str) -> Node:
    inputs, attributes = _convolution(d, op)
    return Node(op, inputs, attributes, d.of((11, 18, 22)))


ACTIVATIONS = {
    "Relu": [], "Sigmoid": [], "Tanh": [], "LeakyRelu": [0.3], "HardSigmoid": [0.3, 0.4],
    "Clip": [-0.5, 0.8],
}  # fmt: skip


@draws("FusedConv", MS)
def fused_convolution(d: Draw, op: str) -> Node:
    inputs, attributes = _convolution(d, op)
    kind = d.of(list(ACTIVATIONS))
    attributes |= {"activation": kind} if d.chance(0.8) else {}
    if ACTIVATIONS[kind] and "activation" in attributes:
        attributes["activation_params"] = ACTIVATIONS[kind]
    return Node(op, inputs, attributes, 18, domain=MS)


@draws("ConvTranspose")
def transposed(d: Draw, op: str) -> Node:
    rank, group = d.whole(1, 3), d.of((1, 1, 2, 3))
    channels, made = group * d.whole(1, 3), d.whole(1, 3)
    kernel, sizes = d.wholes(1, 4, rank), d.wholes(2, 6, rank)
    strides = d.wholes(1, 3, rank) if d.chance(0.7) else [1] * rank
    attributes = {"strides": strides} | d.some(dilations=d.wholes(1, 2, rank))
    attributes |= _padded(d, [2] * rank)
    attributes |= d.some(output_padding=[d.whole(0, max(0, s - 1)) for s in strides])
    if d.chance(0.2):
        pairs = zip(sizes, strides, strict=True)
        attributes["output_shape"] = [size * step + d.whole(-1, 1) for size, step in pairs]
    if group > 1:
        attributes["group"] = group
    x = d.normal(d.whole(1, 2), channels, *sizes)
    bias = d.normal(made * group) if d.chance(0.5) else None
    return Node(op, [x, d.normal(channels, made, *kernel), bias], attributes, d.of((11, 18, 22)))


@draws("MaxUnpool")
def unpool(d: Draw, op: str) -> Node:
    n, c, h, w = d.whole(1, 2), d.whole(1, 2), d.whole(1, 3), d.whole(1, 3)
    places = np.stack(
        [d.numbers.permutation(c * 4 * h * w)[: c * h * w].reshape(c, h, w) for _ in range(n)]
    )
    places = np.asarray(places + np.arange(n).reshape(n, 1, 1, 1) * c * 4 * h * w, np.int64)
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return Node(op, [d.normal(n, c, h, w), places], attributes, d.of((11, 22)))


@draws("LRN")
def across_channels(d: Draw, op: str) -> Node:
    x = d.normal(d.whole(1, 2), d.whole(1, 6), *d.shape(high=3, least=2, most=2))
    attributes = {"size": d.of((1, 3, 5))} | d.some(alpha=0.3, bias=2.0, beta=0.5)
    return Node(op, [x], attributes, 13)


COORDINATES = (
    "half_pixel half_pixel_symmetric align_corners asymmetric pytorch_half_pixel tf_crop_and_resize"
)


@draws("Resize")
def resize(d: Draw, op: str) -> Node:
    rank, mode = d.of((1, 2, 2, 3)), d.word("nearest linear cubic")
    rank = 2 if mode == "cubic" else rank
    lead = 2 if d.chance(0.8) else d.whole(0, 1)
    image = (*d.wholes(1, 2, lead), *d.wholes(1, 6, rank))
    places, opset = d.word(COORDINATES), d.of((13, 18, 19))
    opset = 19 if places == "half_pixel_symmetric" else opset
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": places}
    if mode == "nearest":
        attributes |= d.some(nearest_mode=d.word("round_prefer_floor round_prefer_ceil floor ceil"))
    if mode == "cubic":
        attributes |= d.some(cubic_coeff_a=-0.5, exclude_outside=1)
    if mode != "nearest" and opset >= 18 and d.chance(0.4):
        attributes["antialias"] = 1
    crops = places == "tf_crop_and_resize"
    if crops:
        attributes |= d.some(extrapolation_value=3.0)
    if opset >= 18 and d.chance(0.3):
        last = range(lead, rank + lead)
        lead, attributes["axes"] = 0, [d.spelled(axis, len(image)) for axis in last]
    roi = None
    if crops:
        starts = [d.of((0.0, 0.1, -0.1, 0.3)) for _ in range(rank)]
        ends = [d.of((1.0, 0.8, 1.2)) for _ in range(rank)]
        roi = np.array([0.0] * lead + starts + [1.0] * lead + ends, np.float32)
    if d.chance(0.5):
        factors = [d.of((0.5, 0.6, 1.0, 1.5, 2.0, 2.3, 3.0)) for _ in range(rank)]
        sizes = [np.array([1.0] * lead + factors, np.float32)]
    else:
        sizes = [None, wholes(*image[:lead], *d.wholes(1, 9, rank))]
        if opset >= 18 and not lead and d.chance(0.3):
            attributes["keep_aspect_ratio_policy"] = d.word("stretch not_larger not_smaller")
    inputs = [d.normal(*image), roi, *sizes]
    return Node(op, inputs, attributes, opset, fixed=[1, 2, 3])


@draws("Upsample")
def upsample(d: Draw, op: str) -> Node:
    """And Resize as it was in opset 10."""
    image = (d.whole(1, 2), d.whole(1, 2), *d.wholes(1, 5, 2))
    factors = np.array([1, 1, *(d.of((0.5, 1.0, 1.5, 2.0, 3.0)) for _ in range(2))], np.float32)
    mode = {"mode": d.word("nearest linear")}
    inputs = [d.normal(*image), factors]
    if d.chance(0.5) or factors.min() < 1:
        return Node("Resize", inputs, mode, 10, fixed=[1])
    return Node(op, inputs, mode, 9, fixed=[1])


@draws("GridSample")
def sampled(d: Draw, op: str) -> Node:
    opset = d.of((16, 20, 22))
    rank = d.of((2, 2, 3)) if opset >= 20 else 2
    mode = d.word("bilinear nearest bicubic" if opset == 16 else "linear nearest cubic")
    image = (d.whole(1, 2), d.whole(1, 2), *d.wholes(1, 5, rank))
    grid = d.between(-1.5, 1.5, image[0], *d.wholes(1, 3, rank), rank)
    attributes = {"mode": mode, "padding_mode": d.word("zeros border reflection")}
    return Node(op, [d.normal(*image), grid], attributes | d.some(align_corners=1), opset)


@draws("AffineGrid")
def grid(d: Draw, op: str) -> Node:
    rank = d.whole(2, 3)
    n, sizes = d.whole(1, 2), d.wholes(1, 3, rank)
    theta = d.normal(n, rank, rank + 1)
    attributes = d.some(align_corners=d.whole(0, 1))
    return Node(op, [theta, wholes(n, d.whole(1, 2), *sizes)], attributes, 20, fixed=[1])


@draws("DeformConv")
def deformed(d: Draw, op: str) -> Node:
    groups, bundles = d.of((1, 1, 2)), d.of((1, 1, 2))
    channels, out = 2 * d.whole(1, 2), groups * d.whole(1, 2)
    image, kernel = d.wholes(5, 7, 2), d.wholes(1, 3, 2)
    pads, strides, dilations = d.wholes(0, 2, 4), d.wholes(1, 2, 2), d.wholes(1, 2, 2)
    places = [
        (size + pads[k] + pads[k + 2] - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1
        for k, size in enumerate(image)
    ]
    n, elements = d.whole(1, 2), bundles * kernel[0] * kernel[1]
    offset = d.normal(n, 2 * elements, *places)
    bias = d.normal(out) if d.chance(0.5) else None
    mask = d.positive(n, elements, *places) if d.chance(0.5) else None
    filters = d.normal(out, channels // groups, *kernel)
    attributes = d.some(pads=pads, strides=strides, dilations=dilations, kernel_shape=kernel)
    attributes = {"pads": pads, "strides": strides, "dilations": dilations} | attributes
    more = {"group": groups, "offset_group": bundles}
    inputs = [d.normal(n, channels, *image), filters, offset, bias, mask]
    return Node(op, inputs, attributes | more, d.of((19, 22)))


@draws("RoiAlign")
def regions(d: Draw, op: str) -> Node:
    x = d.normal(d.whole(1, 2), d.whole(1, 2), d.whole(2, 6), d.whole(2, 6))
    many = d.whole(1, 3)
    corners = np.sort(d.between(0.0, 5.0, many, 2, 2), axis=1).reshape(many, 4)
    attributes = {"output_height": d.whole(1, 3), "output_width": d.whole(1, 3)}
    attributes |= d.some(sampling_ratio=d.whole(0, 2), mode=d.word("avg max"), spatial_scale=0.7)
    opset = d.of((10, 16, 22))
    if opset >= 16:
        ways = d.word("half_pixel output_half_pixel")
        attributes |= d.some(coordinate_transformation_mode=ways)
    which = d.indices(0, x.shape[0], (many,))
    return Node(op, [x, np.asarray(corners, d.dtype), which], attributes, opset, fixed=[1, 2])


@draws("Col2Im")
def from_columns(d: Draw, op: str) -> Node:
    rank = d.whole(1, 3)
    image, block = d.wholes(3, 6, rank), d.wholes(1, 3, rank)
    steps, holes = d.wholes(1, 2, rank), d.wholes(1, 1, rank)
    sides = d.wholes(0, 1, 2 * rank) if d.chance(0.5) else [0] * 2 * rank
    many = [
        (size + sides[k] + sides[k + rank] - holes[k] * (block[k] - 1) - 1) // steps[k] + 1
        for k, size in enumerate(image)
    ]
    if min(many) < 1:
        return Node(op, [d.normal(1, 1, 1), wholes(1), wholes(1)], {}, 18, fixed=[1, 2])
    x = d.normal(d.whole(1, 2), d.whole(1, 2) * int(np.prod(block)), int(np.prod(many)))
    attributes = {"strides": steps, "pads": sides}
    return Node(op, [x, wholes(*image), wholes(*block)], attributes, 18, fixed=[1, 2])


@draws("DepthToSpace SpaceToDepth")
def depth(d: Draw, op: str) -> Node:
    block, n, h, w = d.whole(1, 3), d.whole(1, 2), d.whole(1, 3), d.whole(1, 3)
    attributes: dict[str, Any] = {"blocksize": block}
    if op == "SpaceToDepth":
        return Node(op, [d.normal(n, d.whole(1, 2), block * h, block * w)], attributes, 13)
    attributes |= d.some(mode=d.word("DCR CRD"))
    return Node(op, [d.normal(n, block * block * d.whole(1, 2), h, w)], attributes, 13)
