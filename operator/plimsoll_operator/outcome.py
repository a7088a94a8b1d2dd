"""What a pass came to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the object is gone, and when it needs another pass though nothing tells us.

    `put_off`: there was none, because the caches have not seen yet what the last one wrote.
    """

    gone: bool = False
    again: timedelta | None = None
    put_off: bool = False
