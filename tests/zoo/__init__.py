"""Real architectures, exported as people export them, trained, and compared with PyTorch.

Needs the ``zoo`` extra: PyTorch, torchvision, timm, transformers and onnxscript.
"""

import importlib.util

NEEDED = ("torch", "torchvision", "timm", "transformers", "onnxscript")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
WHY_MISSING = f"{', '.join(MISSING)} not installed; make test-zoo, or pip install '.[zoo]'"
