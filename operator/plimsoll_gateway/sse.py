"""Server-sent events in transit: where one ends, so that a broken stream can still end with a whole one."""

from __future__ import annotations

# An event longer than this is passed on in pieces; a stream that breaks inside it cannot be ended properly.
LONGEST_HELD = 1 << 20


class EventAligner:
    """Passes on whole events and holds back the beginning of the next one.

    Nothing is delayed that a client could have used: an event counts only once its blank line has arrived.
    """

    def __init__(self) -> None:
        self._held = b""
        self.inside_event = False  # a piece of an event has been passed on that was too long to hold

    def push(self, chunk: bytes) -> bytes:
        """Add what arrived; returns what may be passed on now (perhaps nothing)."""
        data = self._held + chunk
        end = max(_end(data, b"\n\n"), _end(data, b"\r\n\r\n"), _end(data, b"\r\r"))
        if end == 0 and len(data) > LONGEST_HELD:
            self._held = b""
            self.inside_event = True
            return data
        if end:
            self.inside_event = False
        self._held = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """What is still held at a regular end of the stream."""
        held, self._held = self._held, b""
        return held


def _end(data: bytes, blank: bytes) -> int:
    """Index behind the last `blank` in `data`, 0 if there is none."""
    at = data.rfind(blank)
    return 0 if at < 0 else at + len(blank)
