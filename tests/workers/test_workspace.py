"""What the pool of a rank's sessions holds."""

from __future__ import annotations

from onnxremat.workers.pipelines.workspace import pool_bytes
from tests.toolbox import graph_of

KIB = 1024


def chain(size: int) -> str:
    """Three values inside, two of them alive at once."""
    return f"""g (float[{size}] x) => (float[{size}] y) {{
        a = Sin(x)  b = Cos(a)  c = Sin(b)  y = Cos(c)
    }}"""


def test_values_inside_share_a_pool() -> None:
    graph = graph_of(chain(KIB))
    assert pool_bytes([graph]) == 2 * 4 * KIB
    assert pool_bytes([graph, graph]) == 2 * 4 * KIB


def test_what_asks_for_more_finds_no_room_in_what_others_left() -> None:
    """Regions never join: live at most are two values of the larger graph."""
    small, large = graph_of(chain(KIB)), graph_of(chain(2 * KIB))
    assert pool_bytes([small, large]) == 2 * 4 * KIB + 2 * 8 * KIB
    assert pool_bytes([large, small]) == 2 * 8 * KIB  # what asks for less does


def test_ops_run_in_the_order_of_onnxruntime() -> None:
    """It begins with the last leaf: both chains are not made side by side, as they are listed."""
    graph = graph_of("""g (float[1024] x) => (float[1] p, float[1] q) {
        a = Sin(x)  c = Cos(x)
        p = ReduceSum(a)  q = ReduceSum(c)
    }""")
    assert pool_bytes([graph]) == 4 * KIB
