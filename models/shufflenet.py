"""ShuffleNet V2: Ma et al., "Practical Guidelines for Efficient CNN Architecture Design", 2018."""

from models.builder import GraphBuilder, Value
from models.spec import architecture

REPEATS = (4, 8, 4)
# stem, three stages and last convolution, by the width multiplier of the paper
CHANNELS = {
    0.5: (24, 48, 96, 192, 1024),
    1.0: (24, 116, 232, 464, 1024),
    1.5: (24, 176, 352, 704, 1024),
    2.0: (24, 244, 488, 976, 2048),
}


def _pointwise(g: GraphBuilder, x: Value, channels: int, layer: int, gain: float = 2.0) -> Value:
    """1x1 convolution ``layer``, batch norm ``layer + 1``, ReLU ``layer + 2``."""
    y = g.conv(x, channels, 1, gain=gain, name=str(layer))
    y = g.batch_norm(y, name=str(layer + 1))
    return g.relu(y, str(layer + 2))


def _depthwise(g: GraphBuilder, x: Value, stride: int, layer: int) -> Value:
    """Depthwise 3x3 convolution ``layer`` and batch norm ``layer + 1``."""
    y = g.conv(x, x.shape[1], 3, stride=stride, groups=x.shape[1], name=str(layer))
    return g.batch_norm(y, name=str(layer + 1))


def _main_branch(g: GraphBuilder, x: Value, channels: int, stride: int) -> Value:
    """[N, C, H, W] to [N, channels, H/stride, W/stride]."""
    with g.scope("branch2"):
        y = _depthwise(g, _pointwise(g, x, channels, 0), stride, 3)
        return _pointwise(g, y, channels, 5, gain=1.0)


def _shuffle(g: GraphBuilder, x: Value) -> Value:
    """Interleaves the two halves of the channels of [N, C, H, W]."""
    batch, channels, height, width = x.shape
    y = g.reshape(x, (batch, 2, channels // 2, height, width))
    return g.reshape(g.transpose(y, (0, 2, 1, 3, 4)), x.shape)


def _unit(g: GraphBuilder, x: Value, channels: int, stride: int) -> Value:
    """[N, C, H, W] to [N, channels, H/stride, W/stride]; stride 1 needs C = channels."""
    half = channels // 2
    if stride == 1:
        kept, x = g.split(x, 2, axis=1)
    else:
        with g.scope("branch1"):
            kept = _pointwise(g, _depthwise(g, x, stride, 0), half, 2, gain=1.0)
    return _shuffle(g, g.concat([kept, _main_branch(g, x, half, stride)], axis=1))


def shufflenet(g: GraphBuilder, *, size: int, width: float, classes: int) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes]; ``width`` is 0.5, 1.0, 1.5 or 2.0."""
    if width not in CHANNELS:
        raise ValueError(f"shufflenet width must be one of {sorted(CHANNELS)}, not {width}")
    stem, *stages, last = CHANNELS[width]
    with g.scope("conv1"):
        x = g.conv(g.image_input(size), stem, 3, stride=2, name="0")
        x = g.relu(g.batch_norm(x, name="1"), "2")
    x = g.max_pool(x, 3, stride=2, padding=1)
    for stage, (channels, count) in enumerate(zip(stages, REPEATS, strict=True), start=2):
        for index in range(count):
            with g.scope(f"stage{stage}", index):
                x = _unit(g, x, channels, stride=1 if index else 2)
    with g.scope("conv5"):
        x = _pointwise(g, x, last, 0)
    x = g.flatten(g.global_average_pool(x))
    g.output(g.linear(x, classes, name="fc"), "logits")


SPECS = (
    architecture(
        "shufflenet", "ShuffleNet V2", shufflenet, batch=16, size=160, width=1.0, classes=1000
    ),
)
