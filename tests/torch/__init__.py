"""Tests against PyTorch's autograd; all of them are skipped where PyTorch is missing."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; pip install '.[torch]'")
