"""VGG: Simonyan and Zisserman, "Very Deep Convolutional Networks", 2014 (no batch norm).

The classifier reads the last feature map as it is, 7x7 at the paper's size of 224, so its
first weight shrinks with the image instead of being fed by an adaptive pooling.
"""

from models.builder import GraphBuilder
from models.spec import architecture

# convolutions in each of the five groups, whose channels are width * GROUP_SCALE
GROUPS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
GROUP_SCALE = (1, 2, 4, 8, 8)


def vgg(g: GraphBuilder, *, depth: int, size: int, width: int, hidden: int, classes: int) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes]; the paper's width 64, hidden 4096."""
    x, layer = g.image_input(size), 0
    with g.scope("features"):
        for count, scale in zip(GROUPS[depth], GROUP_SCALE, strict=True):
            for _ in range(count):
                x = g.conv(x, width * scale, 3, bias=True, name=str(layer))
                x = g.relu(x, str(layer + 1))
                layer += 2
            x = g.max_pool(x, 2, stride=2, name=str(layer))
            layer += 1
    x = g.flatten(x)
    with g.scope("classifier"):  # 2 and 5 are dropouts, which inference drops
        x = g.relu(g.linear(x, hidden, gain=2.0, name="0"), "1")
        x = g.relu(g.linear(x, hidden, gain=2.0, name="3"), "4")
        x = g.linear(x, classes, name="6")
    g.output(x, "logits")


SPECS = tuple(
    architecture(
        f"vgg{depth}",
        f"VGG-{depth}",
        vgg,
        fixed={"depth": depth},
        batch=4,
        size=128,
        width=32,
        hidden=1024,
        classes=1000,
    )
    for depth in (16, 19)
)
