"""Server-sent events in transit: finds their ends, so that a broken stream can still end with a complete event."""

from __future__ import annotations

# A longer event is forwarded in chunks; a stream that breaks inside it cannot be ended properly.
LONGEST_HELD = 1 << 20
BLANK_BEGUN = 3  # length of the longest blank line, minus one byte


class EventAligner:
    """Forwards complete events and holds back the start of the next one.

    This delays nothing that a client could use: an event counts only after its blank line.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []  # chunks of the unfinished event
        self._size = 0
        self._last = b""  # the last bytes held, which may start a blank line
        self.inside_event = False  # part of an event too long to hold has been forwarded

    def push(self, chunk: bytes) -> bytes:
        """Add a chunk, and return the bytes to forward (possibly none)."""
        if not self._held and chunk.endswith(b"\n\n"):  # the usual case
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
        """Return the held bytes at a regular end of the stream."""
        return self._take(b"")

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._held.append(piece)
            self._size += len(piece)
            self._last = (self._last + piece)[-BLANK_BEGUN:]

    def _take(self, piece: bytes) -> bytes:
        """Return the held bytes followed by `piece`."""
        if not self._held:
            return piece
        taken = b"".join((*self._held, piece))
        self._held.clear()
        self._size, self._last = 0, b""
        return taken


def _end(data: bytes, blank: bytes) -> int:
    """Return the index after the last `blank` in `data`, or 0."""
    at = data.rfind(blank)
    return 0 if at < 0 else at + len(blank)
