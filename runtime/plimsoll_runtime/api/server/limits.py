"""Limits on the size of request bodies, by path, and the values of the option that changes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from plimsoll_runtime.utils.option_values import OptionError, amount

KIB, MIB = 2**10, 2**20
OPTION = "--max-body-bytes"
VARIABLE = "PLIMSOLL_MAX_BODY_BYTES"
"""Environment variable with the same values, separated by commas."""
_GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/messages",
    "/v1/messages/count_tokens",
)
_POOLING = ("/v1/embeddings", "/v1/score", "/v1/rerank", "/v2/rerank", "/v1/classify")
KEPT_APART = frozenset({"/v1/files", "/v1/batches"})
"""Paths that use no model: a limit for all models does not apply to them."""
BODY_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(_GENERATING, 32 * MIB),
        **dict.fromkeys(_POOLING, 16 * MIB),
        **dict.fromkeys(("/tokenize", "/detokenize"), 8 * MIB),
        "/v1/files": 512 * MIB,
        "/v1/batches": 64 * KIB,
    }
)
"""Limits in bytes. A million tokens are 4 MiB as text and 8 MiB as ids, so the longest context of today fits. A file
is written to disk while it arrives and has OpenAI's limit."""
OTHER_BYTES = 64 * KIB
"""Limit of all other paths."""
_KEY = "plimsoll.body_limits"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits of one server. `bytes` is the largest size of a body in bytes, by path."""

    bytes: Mapping[str, int] = field(default_factory=lambda: BODY_BYTES)

    def lay(self, scope: MutableMapping[str, Any]) -> None:
        """Put the limits into a request's scope, where `body_limit` reads them."""
        scope[_KEY] = self


def body_limit(scope: Mapping[str, Any]) -> int:
    """Return the most bytes of a request's body, from the server's limits in its scope."""
    limits: BodyLimits = scope[_KEY]
    return limits.bytes.get(scope["path"], OTHER_BYTES)


def limits_with(changes: Iterable[tuple[str | None, int]]) -> BodyLimits:
    """Return the default limits with changes. A change without a path applies to all paths with a model; one with a
    path takes precedence, whatever their order."""
    limits = dict(BODY_BYTES)
    for path, size in sorted(changes, key=lambda change: change[0] is not None):
        limits.update(dict.fromkeys(limits.keys() - KEPT_APART, size) if path is None else {path: size})
    return BodyLimits(limits)


def path_and_size(text: str) -> tuple[str | None, int]:
    """Parse `PATH=SIZE`, the limit of one path, or `SIZE`, that of all paths with a model (path None), for
    `limits_with`. Raises OptionError."""
    path, equals, size = text.rpartition("=")
    if equals and path not in BODY_BYTES:
        raise OptionError(f"{path[:64]!r} must be one of {', '.join(BODY_BYTES)}")
    if (most := amount(size)) < 1:
        raise OptionError("the limit must be at least one byte; write an amount like 2MiB")
    return path or None, most
