"""Layers that see the tokens of the query's own chunk."""

from __future__ import annotations

import msgspec


class Chunked(msgspec.Struct, frozen=True, tag="chunk"):
    """A query sees from the last multiple of `chunk` on. It is a multiple of a block's tokens.

    So what is given back is a whole number of chunks, and those of what is left begin where they did.
    """

    chunk: int

    @property
    def behind(self) -> int:
        """Tokens before its own that a query sees at most."""
        return self.chunk - 1

    def oldest(self, position: int) -> int:
        """The first token that the query at a position sees, and so the first that any later one does."""
        return position // self.chunk * self.chunk
