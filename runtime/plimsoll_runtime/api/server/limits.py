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
"""Of the environment, for the same: several are parted by commas."""
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
"""Paths that ask no model: a limit for all does not mean them."""
BODY_BYTES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(_GENERATING, 32 * MIB),
        **dict.fromkeys(_POOLING, 16 * MIB),
        **dict.fromkeys(("/tokenize", "/detokenize"), 8 * MIB),
        "/v1/files": 512 * MIB,
        "/v1/batches": 64 * KIB,
    }
)
"""Bytes. Of a million tokens the text has 4 MiB and the ids have 8: the longest context of today, alone or with some
others beside it. A file goes to the disk as it comes, and is as large as OpenAI takes them."""
OTHER_BYTES = 64 * KIB
"""Of a path that is not among them."""
_KEY = "plimsoll.body_limits"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Those of one server. `bytes` is by path."""

    bytes: Mapping[str, int] = field(default_factory=lambda: BODY_BYTES)

    def lay(self, scope: MutableMapping[str, Any]) -> None:
        """Have `body_limit` find them with a request."""
        scope[_KEY] = self


def body_limit(scope: Mapping[str, Any]) -> int:
    """How many bytes the body of a request may have. A server's own limits lie in its scope."""
    limits: BodyLimits = scope[_KEY]
    return limits.bytes.get(scope["path"], OTHER_BYTES)


def limits_with(changes: Iterable[tuple[str | None, int]]) -> BodyLimits:
    """The usual ones with what was asked for. One for no path is for all that ask a model; one for a path replaces
    either, in whatever order they come.
    """
    limits = dict(BODY_BYTES)
    for path, size in sorted(changes, key=lambda change: change[0] is not None):
        limits.update(dict.fromkeys(limits.keys() - KEPT_APART, size) if path is None else {path: size})
    return BodyLimits(limits)


def path_and_size(text: str) -> tuple[str | None, int]:
    """A limit of one path, or without a path of all that ask a model, as `limits_with` takes it. Raises OptionError."""
    path, equals, size = text.rpartition("=")
    if equals and path not in BODY_BYTES:
        raise OptionError(f"{path[:64]!r} is none of {', '.join(BODY_BYTES)}")
    if (most := amount(size)) < 1:
        raise OptionError("a body has one byte at least; write an amount like 2MiB")
    return path or None, most
