"""What each batch of a key is held to.

A batch runs where no gateway sees its lines. So a part of the key's limits is set aside for batches (`batchShare`), and
divided between as many as may be open at once (`batches`): whatever gateways and servers do, requests and batches
together keep to the limits, and neither has to hear of the other.
"""

from __future__ import annotations

import json

import msgspec

from plimsoll_gateway.keys.limits import KeyLimits

USUAL_OPEN = 32
"""Batches of a key without limits that may be open at once, where its file does not say."""
MOST_HEADER_BYTES = 8 << 10


class BatchLimits(msgspec.Struct, frozen=True):
    """`at_once`: batches that may be open; the limits are those of each of them, None for none."""

    models: tuple[str, ...]
    at_once: int
    requests_per_minute: int | None
    tokens_per_minute: int | None

    def header(self, key: str) -> bytes:
        """As a runtime is told them (tests/contract)."""
        said = {
            "key": key,
            "models": self.models,
            "atOnce": self.at_once,
            "requestsPerMinute": self.requests_per_minute,
            "tokensPerMinute": self.tokens_per_minute,
        }
        return json.dumps({name: value for name, value in said.items() if value is not None}).encode("ascii")


def divided(limits: KeyLimits) -> tuple[KeyLimits, BatchLimits | None]:
    """What a key's requests are held to, and each of its batches: None where it makes none, for nothing is left for
    one, or more is to be said of its models than a header has room for.
    """
    minute_limits = (limits.requests_per_minute, limits.tokens_per_minute)
    if minute_limits == (None, None):
        batch = BatchLimits(limits.models, limits.batches or USUAL_OPEN, None, None)
        return limits, _if_sayable(batch)
    at_once = limits.batches or 1
    aside = [None if limit is None else limit * limits.batch_share // 100 for limit in minute_limits]
    each = [None if limit is None else limit // at_once for limit in aside]
    if 0 in each:
        return limits, None
    left = [
        None if limit is None or taken is None else limit - taken
        for limit, taken in zip(minute_limits, aside, strict=True)
    ]
    live = msgspec.structs.replace(limits, requests_per_minute=left[0], tokens_per_minute=left[1])
    return live, _if_sayable(BatchLimits(limits.models, at_once, each[0], each[1]))


def _if_sayable(batch: BatchLimits) -> BatchLimits | None:
    return batch if len(batch.header("k" * 64)) <= MOST_HEADER_BYTES else None
