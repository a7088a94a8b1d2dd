"""The access log: a line for each request that was refused or failed, or for each request.

A line has no text of the client except its request id, which is 64 plain characters at most, and its method, which is
one that the HTTP parser knows.
"""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple

from plimsoll_gateway.telemetry.request_record import RequestRecord
from plimsoll_telemetry.log_subject import LogSubject

AccessMode = Literal["errors", "all", "off"]
ACCESS_MODES: tuple[AccessMode, ...] = ("errors", "all", "off")
FIRST_ALIKE = 100
"""Lines with the same method, route, status, error and model that are written in a minute."""

log = logging.getLogger(__name__)


class AccessEntry(NamedTuple):
    """A request that has ended. `error` is the code of the gateway's error, `key` the name of its API key; both None
    without one.
    """

    method: str
    route: str
    status: int
    seconds: float
    subject: LogSubject
    record: RequestRecord
    error: str | None = None
    key: str | None = None


class AccessLog:
    """Writes the access log."""

    def __init__(self, mode: AccessMode) -> None:
        self._all = mode == "all"
        self._off = mode == "off"

    def wants(self, status: int, *, broke: bool) -> bool:
        """Return whether to log a request. `broke`: its response ended with an error, whatever its status."""
        return not self._off and (self._all or status >= 400 or broke)

    def write(self, entry: AccessEntry) -> None:
        """Write a line: a warning if the service failed, an information if the client or its key's limits did."""
        record, subject = entry.record, entry.subject
        phases = {name: round(seconds, 6) for name, seconds in record.phases.seconds().items()}
        fields = {
            "request_id": subject.request_id,
            "trace_id": subject.trace_id,
            "method": entry.method,
            "route": entry.route,
            "status": entry.status,
            "error": entry.error,
            "seconds": round(entry.seconds, 6),
            "model": subject.model or None,
            "key": entry.key,
            "attempts": len(record.attempts),
            "failure": record.failure,
            "phases": phases,
        }
        alike = f"{entry.method} {entry.route} {entry.status} {entry.error or '-'}"
        log.log(
            logging.WARNING if entry.status >= 500 or (entry.status < 400 and entry.error) else logging.INFO,
            "%s in %.0f ms, %s attempt%s%s, model %s, key %s, request %s, trace %s: %s",
            alike,
            entry.seconds * 1e3,
            len(record.attempts),
            "" if len(record.attempts) == 1 else "s",
            "" if record.failure is None else f" (the last failed: {record.failure})",
            subject.model or "-",
            entry.key or "-",
            subject.request_id,
            subject.trace_id or "-",
            ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in phases.items()),
            extra={"fields": fields, "alike": None if self._all else alike, "first": FIRST_ALIKE},
        )
