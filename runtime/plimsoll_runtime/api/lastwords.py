"""Why a process ended, in one line in the file that the pod's status shows."""

from __future__ import annotations

import logging
from pathlib import Path

from plimsoll_runtime.errors import PlimsollError

logger = logging.getLogger(__name__)

TERMINATION_LOG_BYTES = 4096


def write_last_words(path: str | None, error: Exception) -> None:
    """Write the kind of the error and its message, if there is such a file."""
    if path is None:
        return
    kind = error.kind.value if isinstance(error, PlimsollError) else "internal"
    line = " ".join(f"{kind}: {error}".split())
    try:
        Path(path).write_bytes(line.encode()[:TERMINATION_LOG_BYTES])
    except OSError as problem:
        logger.warning("the termination log %s cannot be written: %s", path, problem)
