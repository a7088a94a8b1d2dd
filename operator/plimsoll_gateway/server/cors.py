"""CORS: response headers and preflights for web pages that may use the API."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from plimsoll_gateway.errors.refusals import origin_not_allowed

Fields = Sequence[tuple[bytes, bytes]]

ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s,A-Z]+")
"""An origin as browsers send it: lower case, without a path. `*` is every origin."""
_ALLOW = b"access-control-allow-origin"
_VARY = (b"vary", b"origin")
_READABLE = (
    *(b"x-request-id", b"request-id", b"retry-after", b"x-should-retry", b"x-plimsoll-ignored"),
    *(b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"),
    *(b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
)
_EXPOSE = (b"access-control-expose-headers", b", ".join(_READABLE))


class Cors:
    """The allowed origins, and the response headers for them."""

    def __init__(self, origins: Collection[str]) -> None:
        self._all = "*" in origins
        self._others: Fields = [(_ALLOW, b"*"), _EXPOSE] if self._all else [_VARY]
        self._known: dict[bytes | None, Fields] = {None: [] if self._all else [_VARY]}
        for origin in () if self._all else map(str.encode, origins):
            self._known[origin] = [(_ALLOW, origin), _EXPOSE, _VARY]

    def fields(self, origin: bytes | None) -> Fields:
        """Return the CORS headers of a response to a request with this Origin header. None: it has no such header."""
        return self._known.get(origin, self._others)

    def preflight(self, headers: Mapping[bytes, bytes]) -> Fields:
        """Return the headers that allow the request of a preflight. Raises Refusal 403."""
        origin = headers[b"origin"]
        if not (self._all or origin in self._known):
            raise origin_not_allowed(origin.decode("latin-1"))
        allowed = [
            (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
            (b"access-control-max-age", b"600"),
        ]
        # Listed one by one: `*` does not include Authorization.
        asked = headers.get(b"access-control-request-headers")
        return allowed if asked is None else [*allowed, (b"access-control-allow-headers", asked)]


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request is a CORS preflight, which carries no key."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers
