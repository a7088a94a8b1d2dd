"""The end of a process: an exit at once after a device failure, and the termination message for the pod's status."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from plimsoll_runtime.errors import PlimsollError

INTERRUPTED = 130
"""The exit code of a process that a signal cut short: 128 and the number of SIGINT."""


def end_at_once(code: int) -> NoReturn:
    """End with this exit code, without giving back what lies on the device: its driver may never answer."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


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
