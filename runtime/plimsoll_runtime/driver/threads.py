"""How many threads an engine computes with."""

from __future__ import annotations

import logging
import os

from plimsoll_kernels.cpu.threads import ThreadShare, share

logger = logging.getLogger(__name__)


def cores() -> int:
    """Those that this process may use: its affinity, not the machine's."""
    return len(os.sched_getaffinity(0))


def take_threads(asked: int | None) -> ThreadShare:
    """As many as asked for, else one per core. Who asks what an engine will need takes them too: how fast a backend
    attends, and so which one is taken, depends on them."""
    available = cores()
    if asked is not None and asked > available:
        logger.warning(
            "%d threads on %d cores take turns, which is slower: give at most %d", asked, available, available
        )
    return share(asked or available)
