"""Layers that see the last tokens of the context."""

from __future__ import annotations

import msgspec


class SlidingWindow(msgspec.Struct, frozen=True, tag="window"):
    """A query sees `window` tokens, itself included."""

    window: int

    @property
    def behind(self) -> int:
        """Tokens before its own that a query sees at most."""
        return self.window - 1

    def oldest(self, position: int) -> int:
        """The first token that the query at a position sees, and so the first that any later one does."""
        return max(0, position - self.window + 1)
