"""Bytes and seconds as people write them.

Sizes: ``2GiB``, ``2Gi``, ``2G`` (binary), ``2GB`` (decimal), plain integers (bytes).
Budgets also: ``60%`` (of the device's memory), ``0.6x`` (of the unoptimised peak), ``min`` (the
smallest feasible), ``cuda:0=6GiB,cpu=16GiB`` (per device).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from onnxremat.errors import UsageError

_BINARY = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(i?b?)\s*$", re.IGNORECASE | re.ASCII)
_SHARE = re.compile(r"^\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|x)\s*$", re.IGNORECASE | re.ASCII)
MOST = 1 << 60  # bytes of a size: sums stay whole numbers of 64 bits
MOST_SHARE = 1e6  # of a memory or a peak
BUDGET_FORMS = "2GiB, 2GB, 500MiB, bytes, 60% (of its memory), 0.6x (of the unoptimised peak), min"


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``2GiB``.

    Raises:
        UsageError: not a size, or not positive.
    """
    found = _SIZE.match(text)
    if not found:
        raise UsageError(f"'{text}' is not a size", hint="write 2GiB, 2GB, 500MiB or bytes")
    number, prefix, suffix = found.groups()
    base = 1000 if suffix.lower() == "b" and prefix else 1024
    amount = float(number) * base ** _BINARY[prefix.lower()]
    if amount > MOST:
        raise UsageError(f"size '{text[:40]}' is larger than any memory", hint="write 2GiB, 500MiB")
    value = int(amount)
    if value <= 0:
        raise UsageError(f"size '{text}' is not positive", hint="write 2GiB, 500MiB or bytes")
    return value


def format_bytes(count: float, *, up: bool = False) -> str:
    """Binary units with three significant digits: ``1.50 GiB``.

    Args:
        up: never less than ``count``, so that as a budget it is enough.
    """
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    unit = units[0]
    if unit == "B":
        return f"{size:.0f} B"
    digits = 2 if abs(size) < 10 else 1 if abs(size) < 100 else 0
    if up:
        size = math.ceil(size * 10**digits) / 10**digits
    return f"{size:.{digits}f} {unit}"


def format_seconds(count: float) -> str:
    """``1.23 s``, ``4.56 ms``, ``7.89 us``."""
    if math.isinf(count):
        return "inf"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if abs(count) * factor >= 1 or unit == "us":
            return f"{count * factor:.3g} {unit}"
    raise AssertionError


@dataclass(frozen=True)
class Budget:
    """A memory limit for one device, not yet resolved to bytes.

    Attributes:
        text: as the user wrote it.
        kind: ``bytes``, ``device`` (share of the device's memory), ``peak`` (share of the
            unoptimised peak) or ``min``.
        value: bytes, or the share as a fraction; 0 for ``min``.
    """

    text: str
    kind: str
    value: float

    @property
    def of_peak(self) -> bool:
        """A share of what the model takes unoptimised."""
        return self.kind == "peak"

    def resolve(self, *, device_bytes: int, peak_bytes: int) -> int | None:
        """Bytes of this budget, None for ``min``."""
        if self.kind == "min":
            return None
        if self.kind == "device":
            return int(self.value * device_bytes)
        if self.of_peak:
            return int(self.value * peak_bytes)
        return int(self.value)


def parse_budget(text: str | int) -> Budget:
    """One budget in any of the accepted forms.

    Raises:
        UsageError: not a budget, or not positive.
    """
    text = str(text).strip()
    if text.lower() == "min":
        return Budget(text, "min", 0.0)
    share = _SHARE.match(text)
    if share:
        number, unit = float(share.group(1)), share.group(2)
        if not 0 < number <= MOST_SHARE:
            problem = "too large" if number > 0 else "not positive"
            raise UsageError(f"budget '{text}' is {problem}", hint=f"write {BUDGET_FORMS}")
        if unit == "%":
            return Budget(text, "device", number / 100)
        return Budget(text, "peak", number)
    try:
        return Budget(text, "bytes", parse_bytes(text))
    except UsageError as error:
        problem = "not positive" if re.match(r"^\s*-|^[0.]+\D*$", text) else "not understood"
        raise UsageError(f"budget '{text}' is {problem}", hint=f"write {BUDGET_FORMS}") from error


def share_of(size: int, total: int, unit: str) -> str:
    """A budget of at least so many bytes, as a share of three digits: ``0.457x``, ``45.683%``.

    Args:
        total: bytes that it is a share of; at least one.
        unit: ``x`` or ``%``.
    """
    steps = 1000 if unit == "x" else 100_000
    step = -(-steps * max(1, size) // total)
    while True:
        text = f"{step / 1000:.3f}{unit}"
        if int(parse_budget(text).value * total) >= size:  # as it will be read, rounded or not
            return text
        step += 1


def parse_budgets(text: str | int) -> dict[str, Budget]:
    """Budgets per device: ``2GiB`` gives ``{"": ...}``, ``cuda:0=6GiB,cpu=16GiB`` gives two.

    Raises:
        UsageError: malformed, or a device named twice.
    """
    text = str(text)
    if "=" not in text:
        return {"": parse_budget(text)}
    budgets: dict[str, Budget] = {}
    for part in text.split(","):
        device, _, amount = part.partition("=")
        device = device.strip().lower()
        if not device or device in budgets:
            raise UsageError(
                f"budget '{text}' names {'a device twice' if device else 'no device'}",
                hint="write cuda:0=6GiB,cpu=16GiB",
            )
        budgets[device] = parse_budget(amount)
    return budgets


def one_budget(text: str | int) -> Budget:
    """The budget of the only device there is.

    Raises:
        UsageError: not a budget, or for a device that is not there.
    """
    budgets = parse_budgets(text)
    for device in ("", "cpu", "cpu:0"):
        if device in budgets and len(budgets) == 1:
            return budgets[device]
    raise UsageError(
        f"budget '{text}' names devices this version does not plan for",
        hint="give one budget, for the CPU: --budget 2GiB",
    )
