"""Training graphs of convolution nets, layer by layer, with bytes and roofline times.

The nets and the granularity of their ops are those of the Checkmate study (Jain et al., MLSys 2020,
section 6): one op per layer, batch normalisation and activation apart, and a gradient op per op
that reads the op's own output and those of its consumers. Shapes come from the papers of the nets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plan_instances import training_graph

from onnxremat.planner.problem import Problem

FLOPS, BANDWIDTH = 10e12, 0.5e12  # of a data centre GPU in single precision, half its peaks
DISPATCH = 10e-6  # seconds per op


@dataclass
class Net:
    """Forward ops under construction; values are (op, channels, height, width)."""

    batch: int
    size: list[int] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)
    shape: list[tuple[int, int, int]] = field(default_factory=list)

    def op(self, reads: list[int], shape: tuple[int, int, int], flops: float = 0.0) -> int:
        """Append an op that makes ``shape`` per sample; ``flops`` per sample."""
        made = 4 * self.batch * shape[0] * shape[1] * shape[2]
        moved = made + sum(self.size[value] for value in reads)
        self.size.append(made)
        self.cost.append(DISPATCH + max(self.batch * flops / FLOPS, moved / BANDWIDTH))
        self.inputs.append(reads)
        self.shape.append(shape)
        return len(self.size) - 1

    def conv(self, x: int | None, channels: int, kernel: int, stride: int = 1, *, at: int = 0,
             groups: int = 1) -> int:  # fmt: skip
        """A convolution; ``at`` is the input's height and width for the first one."""
        before, height, width = (3, at, at) if x is None else self.shape[x]
        shape = (channels, -(-height // stride), -(-width // stride))
        work = 2.0 * kernel**2 * before / groups * shape[0] * shape[1] * shape[2]
        return self.op([] if x is None else [x], shape, work)

    def same(self, x: int, *others: int) -> int:
        """An elementwise op: normalisation, activation, addition."""
        return self.op([x, *others], self.shape[x])

    def pool(self, x: int, stride: int = 2) -> int:
        """A pooling."""
        channels, height, width = self.shape[x]
        return self.op([x], (channels, height // stride, width // stride))

    def dense(self, x: int, units: int) -> int:
        """A fully connected layer."""
        channels, height, width = self.shape[x]
        return self.op([x], (units, 1, 1), 2.0 * units * channels * height * width)

    def training(self) -> Problem:
        """The training graph."""
        readers: list[list[int]] = [[] for _ in self.size]
        for op, row in enumerate(self.inputs):
            for value in row:
                readers[value].append(op)
        saved = [sorted({op, *readers[op]}) for op in range(len(self.size))]
        return training_graph(self.size, self.cost, self.inputs, saved)


def vgg_body(net: Net, at: int) -> list[int]:
    """The thirteen convolutions of VGG16; returns the pooled values of its five blocks."""
    x: int | None = None
    pooled = []
    for channels, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = net.conv(x, channels, 3, at=at)
        assert x is not None
        x = net.pool(x)
        pooled.append(x)
    return pooled


def vgg16(batch: int = 256) -> Problem:
    """Simonyan and Zisserman, 2015."""
    net = Net(batch)
    x = vgg_body(net, 224)[-1]
    x = net.same(x)  # flatten
    for units in (4096, 4096, 1000):
        x = net.dense(x, units)
    return net.training()


def vgg_unet(batch: int = 32, at: int = 512) -> Problem:
    """A U-Net (Ronneberger et al., 2015) on the body of VGG16."""
    net = Net(batch)
    pooled = vgg_body(net, at)
    x = pooled[3]
    for channels, skip in ((512, pooled[2]), (256, pooled[1]), (128, pooled[0]), (64, None)):
        x = net.same(net.conv(x, channels, 3))
        depth, height, width = net.shape[x]
        x = net.op([x], (depth, 2 * height, 2 * width))  # up
        if skip is not None:
            x = net.op([x, skip], (depth + net.shape[skip][0], 2 * height, 2 * width))
    x = net.conv(x, 21, 3)
    net.same(net.same(x))  # reshape, softmax
    return net.training()


def mobilenet(batch: int = 512) -> Problem:
    """Howard et al., 2017: a convolution and thirteen separable ones."""
    net = Net(batch)

    def block(x: int | None, channels: int, kernel: int, stride: int, groups: int) -> int:
        made = net.conv(x, channels, kernel, stride, at=224, groups=groups)
        return net.same(net.same(made))  # normalisation, activation

    x = block(None, 32, 3, 2, 1)
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
    for channels, stride in (*plan, *[(512, 1)] * 5, (1024, 2), (1024, 1)):
        if stride == 2:
            x = net.same(x)  # padding
        depth = net.shape[x][0]
        x = block(block(x, depth, 3, stride, depth), channels, 1, 1, 1)
    x = net.same(net.pool(x, net.shape[x][1]))  # reshape
    net.same(net.dense(net.same(x), 1000))  # dropout, classes, softmax
    return net.training()


def resnet50(batch: int = 256) -> Problem:
    """He et al., 2016: sixteen bottlenecks."""
    net = Net(batch)

    def normed(x: int | None, channels: int, kernel: int, stride: int = 1) -> int:
        return net.same(net.conv(x, channels, kernel, stride, at=224))

    x = net.pool(net.same(net.same(normed(None, 64, 7, 2))))  # activation, padding
    for stage, count in enumerate((3, 4, 6, 3)):
        channels = 64 << stage
        for block in range(count):
            stride = 2 if block == 0 and stage else 1
            short = normed(x, 4 * channels, 1, stride) if block == 0 else x
            y = net.same(normed(x, channels, 1, stride))
            y = net.same(normed(y, channels, 3))
            y = normed(y, 4 * channels, 1)
            x = net.same(net.same(y, short))  # addition, activation
    net.dense(net.pool(x, net.shape[x][1]), 1000)
    return net.training()


NETS: dict[str, Callable[[], Problem]] = {
    "vgg16": vgg16, "vgg_unet": vgg_unet, "mobilenet": mobilenet, "resnet50": resnet50,
}  # fmt: skip
