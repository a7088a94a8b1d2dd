"""Server-sent events in transit: where one ends, so that a broken stream can still end with a whole one."""

from __future__ import annotations

# An event longer than this is passed on in pieces; a stream that breaks inside it cannot be ended properly.
LONGEST_HELD = 1 << 20
BLANK_BEGUN = 3  # bytes of the longest blank line but one


class EventAligner:
    """Passes on whole events and holds back the beginning of the next one.

    Nothing is delayed that a client could have used: an event counts only once its blank line has arrived.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []  # pieces of the event that has not ended
        self._size = 0
        self._last = b""  # what is held ends with this, as much as may begin a blank line
        self.inside_event = False  # a piece of an event has been passed on that was too long to hold

    def push(self, chunk: bytes) -> bytes:
        """Add what arrived; returns what may be passed on now (perhaps nothing)."""
        if not self._held and chunk.endswith(b"\n\n"):  # as nearly all do
            self.inside_event = False
            return chunk
        fresh = self._last + chunk
        end = max(_end(fresh, b"\n\n"), _end(fresh, b"\r\n\r\n"), _end(fresh, b"\r\r"))
        if end:
            self.inside_event = False
            cut = end - len(self._last)
            ready = self._take(chunk[:cut])
            self._hold(chunk[cut:])
            return ready
        if self._size + len(chunk) > LONGEST_HELD:
            self.inside_event = True
            return self._take(chunk)
        self._hold(chunk)
        return b""

    def rest(self) -> bytes:
        """What is still held at a regular end of the stream."""
        return self._take(b"")

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._held.append(piece)
            self._size += len(piece)
            self._last = (self._last + piece)[-BLANK_BEGUN:]

    def _take(self, piece: bytes) -> bytes:
        """What is held, with that behind it."""
        if not self._held:
            return piece
        taken = b"".join((*self._held, piece))
        self._held.clear()
        self._size, self._last = 0, b""
        return taken


def _end(data: bytes, blank: bytes) -> int:
    """Index behind the last `blank` in `data`, 0 if there is none."""
    at = data.rfind(blank)
    return 0 if at < 0 else at + len(blank)
