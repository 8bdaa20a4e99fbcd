"""LeNet-5: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998."""

from models.builder import GraphBuilder, Value
from models.spec import architecture


def _tanh(g: GraphBuilder, x: Value, name: str) -> Value:
    with g.scope(name):
        return g.op("Tanh", x, shape=x.shape)


def lenet(g: GraphBuilder, *, size: int, classes: int) -> None:
    """[N, 1, size, size] to ``logits`` [N, classes]."""
    x = g.image_input(size, channels=1)
    for layer, (channels, padding) in enumerate(((6, 2), (16, 0)), start=1):
        x = g.conv(x, channels, 5, padding=padding, bias=True, gain=1.0, name=f"conv{layer}")
        x = g.average_pool(_tanh(g, x, f"tanh{layer}"), 2, stride=2, name=f"pool{layer}")
    x = g.flatten(x)
    for layer, features in enumerate((120, 84), start=3):
        x = _tanh(g, g.linear(x, features, name=f"fc{layer}"), f"tanh{layer}")
    g.output(g.linear(x, classes, name="fc5"), "logits")


SPECS = (architecture("lenet", "LeNet-5", lenet, batch=64, size=28, classes=10),)
