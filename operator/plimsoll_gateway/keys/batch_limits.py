"""What each batch of a key is held to.

A batch runs where no gateway sees its lines. So a part of the key's limits is set aside for batches (`batchShare`), and
divided between as many as may be open at once (`batches`): whatever gateways and servers do, requests and batches
together keep to the limits, and neither has to hear of the other.
"""

from __future__ import annotations

import json

import msgspec

from plimsoll_gateway.keys.limits import Terms

USUAL_OPEN = 32
"""Batches of a key without limits that may be open at once, where its file does not say."""
MOST_HEADER_BYTES = 8 << 10


class BatchTerms(msgspec.Struct, frozen=True):
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


def divided(terms: Terms) -> tuple[Terms, BatchTerms | None]:
    """What a key's requests are held to, and each of its batches: None where it makes none, for nothing is left for
    one, or more is to be said of its models than a header has room for.
    """
    limits = (terms.requests_per_minute, terms.tokens_per_minute)
    if limits == (None, None):
        batch = BatchTerms(terms.models, terms.batches or USUAL_OPEN, None, None)
        return terms, _if_sayable(batch)
    at_once = terms.batches or 1
    aside = [None if limit is None else limit * terms.batch_share // 100 for limit in limits]
    each = [None if limit is None else limit // at_once for limit in aside]
    if 0 in each:
        return terms, None
    left = [
        None if limit is None or taken is None else limit - taken for limit, taken in zip(limits, aside, strict=True)
    ]
    live = msgspec.structs.replace(terms, requests_per_minute=left[0], tokens_per_minute=left[1])
    return live, _if_sayable(BatchTerms(terms.models, at_once, each[0], each[1]))


def _if_sayable(batch: BatchTerms) -> BatchTerms | None:
    return batch if len(batch.header("k" * 64)) <= MOST_HEADER_BYTES else None
