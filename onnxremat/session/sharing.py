"""Does a training step give the same where its new values are written over the old ones?

A trainer gives a parameter and its new value one buffer. That is right where every reader of the
old value runs first: rules see to it (:mod:`onnxremat.grad.ordering`,
:mod:`onnxremat.schedule.updates`), and here a run is asked, which knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxremat.ort.binding import BoundSession, BoundState
from onnxremat.ort.profile import Feeds
from onnxremat.session.compare import Difference, compare


def shared_and_apart(session: Any, feeds: Feeds, updates: Mapping[str, str]) -> Difference:
    """One run with the buffers of a trainer against one in which nothing is shared, from the same
    inputs: every output.

    Args:
        session: on the step.
        updates: inputs to the outputs that are written over them.

    Raises:
        ModelError: a run fails.
    """
    apart = _run(session, feeds, updates, {})
    return compare(_run(session, feeds, updates, updates), apart)


def _run(
    session: Any, feeds: Feeds, state: Mapping[str, str], updates: Mapping[str, str]
) -> dict[str, Any]:
    held = BoundState({name: np.array(feeds[name]) for name in state if name in feeds})
    names = [value.name for value in session.get_outputs()]
    own = [name for name in names if name not in updates.values()]
    results: dict[str, Any] = BoundSession(session, held, updates, own).run(feeds)
    return results | {new: held.arrays[old] for old, new in updates.items()}
