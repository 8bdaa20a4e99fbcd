"""setuptools, given what compiles the search where a wheel is built (setup.py). An editable
installation compiles nothing, and needs none of it."""

from __future__ import annotations

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def get_requires_for_build_wheel(config_settings: dict[str, str] | None = None) -> list[str]:
    """Beside setuptools: what the kernels import."""
    found: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return [*found, "numpy>=1.26", "numba>=0.60"]
