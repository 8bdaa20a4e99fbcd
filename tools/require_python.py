"""Fail with one clear line when Python is too old."""

import sys

WANTED = (3, 11)

if sys.version_info[:2] < WANTED:
    sys.exit(
        f"onnxremat needs Python 3.11 or newer, this is {sys.version.split()[0]}.\n"
        "Run again with: make PYTHON=python3.12 demo"
    )
