"""Process exit: immediately after a device failure, and with a termination message for the pod's status."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from plimsoll_runtime.errors import PlimsollError

INTERRUPTED = 130
"""Exit code after an interrupting signal: 128 plus the number of SIGINT."""


def end_at_once(code: int) -> NoReturn:
    """Exit without freeing device memory, because the device's driver may never answer."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


logger = logging.getLogger(__name__)

TERMINATION_LOG_BYTES = 4096


def write_last_words(path: str | None, error: Exception) -> None:
    """Write the error's kind and message to the termination log `path`, unless it is None."""
    if path is None:
        return
    kind = error.kind.value if isinstance(error, PlimsollError) else "internal"
    line = " ".join(f"{kind}: {error}".split())
    try:
        Path(path).write_bytes(line.encode()[:TERMINATION_LOG_BYTES])
    except OSError as problem:
        logger.warning("the termination log %s cannot be written: %s", path, problem)
