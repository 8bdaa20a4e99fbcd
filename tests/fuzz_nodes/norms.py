"""Normalisations, softmax and losses."""

from __future__ import annotations

import numpy as np

from tests.fuzz_nodes.draw import MS, Array, Draw, Node, draws

EPSILONS = (1e-5, 0.1)


@draws("Softmax LogSoftmax Hardmax LpNormalization")
def along(d: Draw, op: str) -> Node:
    x = d.normal(*d.shape())
    attributes = d.some(axis=d.spelled(d.whole(0, x.ndim - 1), x.ndim))
    if op == "LpNormalization":
        return Node(op, [x], attributes | d.some(p=d.whole(1, 2)), d.of((13, 22)))
    return Node(op, [x], attributes, d.of((11, 13)))


@draws("LayerNormalization RMSNormalization SimplifiedLayerNormalization")
def of_rows(d: Draw, op: str) -> Node:
    x = d.normal(*d.shape())
    axis = d.whole(0, x.ndim - 1)
    shape = x.shape[axis:]
    if d.chance(0.3):
        shape = d.of(((1,), shape[-1:], (1,) * len(shape)))
    attributes = d.some(axis=d.spelled(axis, x.ndim), epsilon=0.1)
    if "axis" not in attributes:
        shape = x.shape[-1:]
    if d.chance(0.2):  # other numbers for other rows
        shape = tuple(d.of((1, size)) for size in x.shape[: x.ndim - len(shape)]) + shape
    if op == "RMSNormalization":
        return Node(op, [x, d.normal(*shape)], attributes, 23)
    if op == "SimplifiedLayerNormalization":
        return Node(op, [x, d.normal(*shape)], attributes, d.of((17, 18)))
    bias = d.normal(*shape) if d.chance(0.6) else None
    opset, outputs = d.of((17, 18)), d.of((1, 1, 3))
    return Node(op, [x, d.normal(*shape), bias], attributes, opset, outputs)


@draws("GroupNormalization InstanceNormalization BatchNormalization")
def of_images(d: Draw, op: str) -> Node:
    groups = d.whole(1, 3)
    channels = groups * d.whole(1, 3)
    least = 1 if op == "InstanceNormalization" else 0
    x = d.normal(d.whole(1, 2), channels, *d.shape(high=3, least=least, most=3))
    epsilon = d.some(epsilon=d.of(EPSILONS))
    if op == "GroupNormalization":
        opset = d.of((18, 21))
        many = groups if opset == 18 else channels
        rows = [d.normal(many), d.normal(many)]
        return Node(op, [x, *rows], {"num_groups": groups, **epsilon}, opset)
    rows = [d.normal(channels), d.normal(channels)]
    if op == "InstanceNormalization":
        return Node(op, [x, *rows], epsilon, d.of((13, 22)))
    rows += [d.normal(channels), d.positive(channels)]
    attributes = epsilon | d.some(momentum=0.7)
    if d.chance(0.3):
        return Node(op, [x, *rows], attributes | {"training_mode": 1}, 15, 3)
    return Node(op, [x, *rows], attributes, d.of((14, 15)))


@draws("SkipLayerNormalization SkipSimplifiedLayerNormalization", MS)
def with_skip(d: Draw, op: str) -> Node:
    b, s, width = d.whole(1, 2), d.whole(1, 3), d.whole(1, 4)
    inputs: list[Array | None] = [d.normal(b, s, width)]
    plain = op == "SkipLayerNormalization"
    inputs.append(
        d.normal(*(d.of(((b, s, width), (1, s, width), (s, width))) if plain else (b, s, width)))
    )
    inputs.append(d.normal(width))
    if plain:
        inputs.append(d.normal(width) if d.chance(0.6) else None)
    inputs.append(d.normal(width) if d.chance(0.5) else None)
    return Node(op, inputs, d.some(epsilon=d.of(EPSILONS)), 18, domain=MS)


@draws("EmbedLayerNormalization", MS)
def embedded(d: Draw, op: str) -> Node:
    b, s, width = d.whole(1, 2), d.whole(1, 3), d.whole(1, 4)
    places = [d.indices(0, 4, (b, s)).astype(np.int32) for _ in range(3)]
    segments = d.chance(0.5)
    mask = np.ones((b, s), np.int32) if d.chance(0.5) else None
    inputs = [
        places[0], places[1] if segments else None, d.normal(4, width), d.normal(5, width),
        d.normal(4, width) if segments else None, d.normal(width), d.normal(width), mask,
        d.indices(0, 5, (b, s)).astype(np.int32) if d.chance(0.3) else None,
    ]  # fmt: skip
    attributes = d.some(epsilon=d.of(EPSILONS))
    return Node(op, inputs, attributes, 18, d.of((2, 2, 3)), domain=MS)


@draws("SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss")
def loss(d: Draw, op: str) -> Node:
    classes = d.whole(2, 4)
    shape = (d.whole(1, 3), classes, *d.shape(high=2, least=0, most=2))
    labels = d.indices(0, classes, (shape[0], *shape[2:])).astype(d.of((np.int64, np.int32)))
    attributes = d.some(reduction=d.word("mean sum none"), ignore_index=d.of((0, 1, -100)))
    if attributes.get("ignore_index") == -100:
        labels.reshape(-1)[0] = -100
    weights = d.positive(classes) if d.chance(0.4) else None
    outputs = d.of((1, 1, 2)) if op == "SoftmaxCrossEntropyLoss" else 1
    return Node(op, [d.normal(*shape), labels, weights], attributes, 13, outputs)
