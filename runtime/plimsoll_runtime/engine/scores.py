"""Log probabilities of prompts, packed: for a long prompt they are millions of numbers, which nobody unpacks whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from plimsoll_runtime.engine.messages import LogprobEntry

PART = 1024
"""Entries of a part, at most. With 20 alternatives each it takes some milliseconds to unpack."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[LogprobEntry]).decode


def pack(entries: Sequence[LogprobEntry]) -> list[bytes]:
    """Parts that hold the entries in order; none for no entries."""
    following = iter(entries)
    return [_encode(part) for part in iter(lambda: list(islice(following, PART)), [])]


def unpack(parts: Sequence[bytes]) -> Iterator[LogprobEntry]:
    """The entries of packed parts, one part unfolded at a time."""
    for part in parts:
        yield from _decode(part)
