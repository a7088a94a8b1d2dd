"""Layers that see the whole context."""

from __future__ import annotations

import msgspec


class Full(msgspec.Struct, frozen=True, tag="full"):
    """Every token is kept as long as its sequence runs."""

    def oldest(self, position: int) -> int:
        """The first token that the query at a position sees."""
        return 0
