"""What a decoder takes that keeps a cache of each sequence by itself, and not in blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnCache:
    """Bytes in a run of such elements: of a sequence whatever its length, and of each of its tokens."""

    element_bytes: int
    sequence: int
    token: int
