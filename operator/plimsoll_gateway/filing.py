"""Files and batches: the paths that are about them, and who may make a batch.

They name no model, and any replica that has the folder in which they are kept can answer. Which ones have it, one
setting says: the model whose replicas are asked.
"""

from __future__ import annotations

import re

from plimsoll_gateway.errors import batch_not_allowed
from plimsoll_gateway.keys.record import ApiKey

BATCHES = "/v1/batches"
FILES_BODY_BYTES = 64 << 20
"""The longest upload that passes: the gateway holds it until a replica has it. Longer ones go to a replica directly."""
_PATHS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"/v1/(files|batches)"), ("GET", "POST")),
    (re.compile(r"/v1/files/[^/]+"), ("GET", "DELETE")),
    (re.compile(r"/v1/files/[^/]+/content"), ("GET",)),
    (re.compile(r"/v1/batches/[^/]+"), ("GET",)),
    (re.compile(r"/v1/batches/[^/]+/cancel"), ("POST",)),
)


def filed_at(path: str) -> tuple[str, ...] | None:
    """The methods that a path takes; None for one that is about neither files nor batches."""
    return next((methods for pattern, methods in _PATHS if pattern.fullmatch(path)), None)


def check_batch(key: ApiKey | None) -> None:
    """Raises Refusal 403 for a key whose bounds a batch would not keep: what its lines ask is not seen here."""
    if key is None:
        return
    bounds = {
        "models": key.terms.models != ("*",),
        "requestsPerMinute": key.terms.requests_per_minute is not None,
        "tokensPerMinute": key.terms.tokens_per_minute is not None,
    }
    if bounded := [name for name, is_set in bounds.items() if is_set]:
        raise batch_not_allowed(key.name, bounded)
