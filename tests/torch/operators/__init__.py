"""PyTorch's counterpart of every ONNX operator that has a gradient rule.

``OPERATORS`` maps ``Conv`` or ``com.microsoft.BiasGelu`` to a function of a
:class:`~tests.torch.node.Node` that computes its outputs with differentiable PyTorch calls. Where
PyTorch has no such operator it is composed from the definition in the ONNX specification; nothing
here is derived from the rules. A new rule needs one entry here.
"""

from tests.torch.node import Operator
from tests.torch.operators.attention import ATTENTION
from tests.torch.operators.control import CONTROL
from tests.torch.operators.convolution import CONVOLUTION
from tests.torch.operators.elementwise import ELEMENTWISE
from tests.torch.operators.indexing import INDEXING
from tests.torch.operators.layout import LAYOUT
from tests.torch.operators.normalization import NORMALIZATION
from tests.torch.operators.products import PRODUCTS
from tests.torch.operators.recurrent import RECURRENT
from tests.torch.operators.reduction import REDUCTION
from tests.torch.operators.resize import RESIZE
from tests.torch.operators.sampling import SAMPLING

OPERATORS: dict[str, Operator] = {
    **ELEMENTWISE,
    **PRODUCTS,
    **CONVOLUTION,
    **NORMALIZATION,
    **RECURRENT,
    **REDUCTION,
    **LAYOUT,
    **INDEXING,
    **RESIZE,
    **SAMPLING,
    **ATTENTION,
    **CONTROL,
}
