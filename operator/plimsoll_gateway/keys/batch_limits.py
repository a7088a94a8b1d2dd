"""The limits of a key's batches.

A batch runs where no gateway sees its lines. `batchShare` per cent of the key's limits are therefore reserved for
batches, and divided by the number that may be open at the same time (`batches`): requests and batches together stay
within the limits without communication between gateways and servers.
"""

from __future__ import annotations

import json

import msgspec

from plimsoll_gateway.keys.limits import KeyLimits

USUAL_OPEN = 32
"""Open batches of a key without limits, unless its file sets `batches`."""
MOST_HEADER_BYTES = 8 << 10


class BatchLimits(msgspec.Struct, frozen=True):
    """`at_once`: the most open batches. The limits are those of each batch; None for no limit."""

    models: tuple[str, ...]
    at_once: int
    requests_per_minute: int | None
    tokens_per_minute: int | None

    def header(self, key: str) -> bytes:
        """Return the value (JSON) of the header that sends these limits of the key to a runtime (tests/contract)."""
        said = {
            "key": key,
            "models": self.models,
            "atOnce": self.at_once,
            "requestsPerMinute": self.requests_per_minute,
            "tokensPerMinute": self.tokens_per_minute,
        }
        return json.dumps({name: value for name, value in said.items() if value is not None}).encode("ascii")


def divided(limits: KeyLimits) -> tuple[KeyLimits, BatchLimits | None]:
    """Return the limits of a key's requests, and those of each of its batches.

    The latter is None if the key may not create batches: the part of a limit is 0, or the list of models exceeds the
    header's size.
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
