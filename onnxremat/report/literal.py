"""Text as it is given. Imports nothing: every command asks as it starts."""

from __future__ import annotations

from typing import Any

# Of a rich console: what it would make of names such as "[/layer]" (an error), "[red]x" or "x:0:b".
LITERAL: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
