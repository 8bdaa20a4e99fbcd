"""Read by Python when it starts: child processes of the OpenVINO tests see the processor too."""

import contextlib
import os

with contextlib.suppress(Exception):
    if os.environ.get("ONNXREMAT_TESTS_ANY_PROCESSOR"):
        from tests.devices.any_processor import as_intel

        as_intel()
