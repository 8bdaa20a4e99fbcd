"""SqueezeNet 1.1: Iandola et al., "AlexNet-level accuracy with 50x fewer parameters", 2016."""

from models.builder import GraphBuilder, Value
from models.spec import architecture

# Fire modules as (squeeze, expand) channels; None is a max pooling.
LAYOUT = (
    None,
    (16, 64),
    (16, 64),
    None,
    (32, 128),
    (32, 128),
    None,
    (48, 192),
    (48, 192),
    (64, 256),
    (64, 256),
)


def _fire(g: GraphBuilder, x: Value, squeeze: int, expand: int) -> Value:
    """[N, C, H, W] to [N, 2 * expand, H, W]."""
    x = g.relu(g.conv(x, squeeze, 1, bias=True, name="squeeze"), "squeeze_activation")
    one = g.relu(g.conv(x, expand, 1, bias=True, name="expand1x1"), "expand1x1_activation")
    three = g.relu(g.conv(x, expand, 3, bias=True, name="expand3x3"), "expand3x3_activation")
    return g.concat([one, three], axis=1)


def squeezenet(g: GraphBuilder, *, size: int, classes: int) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes]."""
    with g.scope("features"):
        x = g.conv(g.image_input(size), 64, 3, stride=2, padding=0, bias=True, name="0")
        x = g.relu(x, "1")
        for index, fire in enumerate(LAYOUT, start=2):
            if fire is None:
                x = g.max_pool(x, 3, stride=2, ceil=True, name=str(index))
            else:
                with g.scope(index):
                    x = _fire(g, x, *fire)
    with g.scope("classifier"):  # 0 is a dropout, which inference drops
        x = g.relu(g.conv(x, classes, 1, bias=True, name="1"), "2")
        x = g.global_average_pool(x, "3")
    g.output(g.flatten(x), "logits")


SPECS = (architecture("squeezenet", "SqueezeNet 1.1", squeezenet, batch=8, size=128, classes=1000),)
