"""The traced requests that run in engines, by their ids there."""

from __future__ import annotations

from plimsoll_runtime.api.telemetry.request_record import RequestRecord

MOST_IDS = 16_384
"""Ids at a time; the choices of further requests are not linked with steps."""


class TracedRequests:
    """Finds the record of a request by the engine's id of one of its choices."""

    def __init__(self) -> None:
        self._records: dict[str, RequestRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, engine_id: str, record: RequestRecord) -> bool:
        """Add an id; return whether there was room for it."""
        if len(self._records) >= MOST_IDS:
            return False
        self._records[engine_id] = record
        return True

    def remove(self, engine_id: str) -> None:
        """Remove an id; unknown ones are ignored."""
        self._records.pop(engine_id, None)

    def get(self, engine_id: str) -> RequestRecord | None:
        """Return the record of a running request; None if it is not traced, or has ended."""
        return self._records.get(engine_id)
