"""What one gateway takes on: the largest body of each path, the bytes held at once, the requests that wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from plimsoll_gateway.budget import MOST_HELD
from plimsoll_gateway.room import MOST_WAITING

MIB = 1 << 20
# The paths that name their model in the body, and the bytes that one may have. A replica that does not offer a path
# says so itself. A million tokens are some 4 MiB of text, or 8 MiB as numbers; OpenAI's embeddings stop at 300,000.
BODY_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "/v1/chat/completions": 8 * MIB,
        "/v1/completions": 8 * MIB,
        "/v1/embeddings": 4 * MIB,
        "/v1/responses": 8 * MIB,
        "/tokenize": 8 * MIB,
        "/detokenize": 8 * MIB,
    }
)


HOLD_SECONDS = 10.0
"""Moving a model between pods was seen to take one to two seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`body_bytes`: by path, of one request. `held_bytes`: of all bodies together. `waiting`: requests of one model.

    `hold_seconds`: how long one may wait for a model that no pod of its pool has just now.
    """

    body_bytes: Mapping[str, int] = field(default_factory=lambda: BODY_BYTES)
    held_bytes: int = MOST_HELD
    waiting: int = MOST_WAITING
    hold_seconds: float = HOLD_SECONDS
