"""The processes that fetch for a host: as many at a time as there is memory for, and one at least."""

from __future__ import annotations

import threading
from collections.abc import Callable

from plimsoll_runtime.driver.hub_fetch import HubFetch

FETCH_BYTES = 64 * 2**20
"""Of one: 25 MiB were measured before it reads anything, and it reads up to eight files in pieces of 10 MB."""


class Fetches:
    """`left` says how many bytes of memory are left. Used by any thread."""

    def __init__(self, left: Callable[[], int]) -> None:
        self._left = left
        self._lock = threading.Lock()
        self._under_way = set[HubFetch]()

    def new(self) -> HubFetch:
        """One that waits until there is room for it."""
        return HubFetch(self)

    def enter(self, fetch: HubFetch) -> bool:
        """Whether it may begin: what those under way have not taken yet is theirs."""
        with self._lock:
            if self._under_way:
                owed = sum(max(0, FETCH_BYTES - other.anonymous) for other in self._under_way)
                if self._left() < owed + FETCH_BYTES:
                    return False
            self._under_way.add(fetch)
            return True

    def leave(self, fetch: HubFetch) -> None:
        """It has ended."""
        with self._lock:
            self._under_way.remove(fetch)

    @property
    def anonymous(self) -> int:
        """Bytes of memory that all of them have of their own."""
        with self._lock:
            return sum(fetch.anonymous for fetch in self._under_way)
