"""GoogLeNet: Szegedy et al., "Going Deeper with Convolutions", 2014 (Inception v1).

Convolutions are batch-normalized, in place of the paper's biases and local response norms,
and the two auxiliary classifiers are left out, as inference does.
"""

from typing import NamedTuple

from models.builder import GraphBuilder, Value
from models.spec import architecture


class Branches(NamedTuple):
    """Output channels of the four branches; ``reduce`` is the 1x1 before a larger one."""

    one: int
    three_reduce: int
    three: int
    five_reduce: int
    five: int
    pool: int


# Modules in order; an int is the kernel of a stride-2 max pooling.
LAYOUT: tuple[tuple[str, Branches | int], ...] = (
    ("inception3a", Branches(64, 96, 128, 16, 32, 32)),
    ("inception3b", Branches(128, 128, 192, 32, 96, 64)),
    ("maxpool3", 3),
    ("inception4a", Branches(192, 96, 208, 16, 48, 64)),
    ("inception4b", Branches(160, 112, 224, 24, 64, 64)),
    ("inception4c", Branches(128, 128, 256, 24, 64, 64)),
    ("inception4d", Branches(112, 144, 288, 32, 64, 64)),
    ("inception4e", Branches(256, 160, 320, 32, 128, 128)),
    ("maxpool4", 2),
    ("inception5a", Branches(256, 160, 320, 32, 128, 128)),
    ("inception5b", Branches(384, 192, 384, 48, 128, 128)),
)


def _conv(
    g: GraphBuilder, x: Value, channels: int, kernel: int, name: str, stride: int = 1
) -> Value:
    """Convolution, batch norm, ReLU."""
    with g.scope(name):
        y = g.conv(x, channels, kernel, stride=stride, name="conv")
        return g.relu(g.batch_norm(y, name="bn", epsilon=1e-3))


def _module(g: GraphBuilder, x: Value, widths: Branches) -> Value:
    """[N, C, H, W] to [N, one + three + five + pool, H, W]."""
    first = _conv(g, x, widths.one, 1, "branch1")
    with g.scope("branch2"):
        second = _conv(g, _conv(g, x, widths.three_reduce, 1, "0"), widths.three, 3, "1")
    with g.scope("branch3"):
        third = _conv(g, _conv(g, x, widths.five_reduce, 1, "0"), widths.five, 5, "1")
    with g.scope("branch4"):
        pooled = g.max_pool(x, 3, stride=1, padding=1, ceil=True, name="0")
        fourth = _conv(g, pooled, widths.pool, 1, "1")
    return g.concat([first, second, third, fourth], axis=1)


def inception(g: GraphBuilder, *, size: int, classes: int) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes]."""
    x = _conv(g, g.image_input(size), 64, 7, "conv1", stride=2)
    x = g.max_pool(x, 3, stride=2, ceil=True, name="maxpool1")
    x = _conv(g, _conv(g, x, 64, 1, "conv2"), 192, 3, "conv3")
    x = g.max_pool(x, 3, stride=2, ceil=True, name="maxpool2")
    for name, part in LAYOUT:
        if isinstance(part, int):
            x = g.max_pool(x, part, stride=2, ceil=True, name=name)
        else:
            with g.scope(name):
                x = _module(g, x, part)
    x = g.flatten(g.global_average_pool(x))
    g.output(g.linear(x, classes, name="fc"), "logits")


SPECS = (
    architecture(
        "inception", "GoogLeNet (Inception v1)", inception, batch=8, size=128, classes=1000
    ),
)
