"""How a server keeps files and works on batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILES_BYTES = 10 * 2**30
LINES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """`folder`: where files and batches are kept, `shared` with other servers; `most_bytes` of all files, `at_once`
    lines asked while no client's request is in flight.
    """

    folder: Path
    shared: bool = False
    most_bytes: int = FILES_BYTES
    at_once: int = LINES_AT_ONCE
