"""What there is to say of a server's device, in a file for whoever shows it: HTTP would tell it to everybody."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from plimsoll_kernels.whole_file import write_whole

logger = logging.getLogger(__name__)


def write_findings(path: Path | None, findings: Sequence[str]) -> None:
    """Write them, one a line, if there is to be such a file; one that cannot be written is told in the log."""
    if path is None:
        return
    try:
        write_whole(path, "".join(f"{' '.join(text.split())}\n" for text in findings).encode())
    except OSError as problem:
        logger.warning("what there is to say of the device cannot be written to %s: %s", path, problem)
