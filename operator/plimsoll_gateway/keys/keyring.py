"""Authentication: finds the API key of a request before its body is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from plimsoll_gateway.errors.refusals import missing_key, wrong_key
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.keys.key_folder import Keys
from plimsoll_gateway.keys.secret import digest_of


class KeySource(Protocol):
    """Provides the API keys."""

    @property
    def current(self) -> Keys:
        """The valid keys."""


class Keyring:
    """Authenticates requests. `source` None: requests need no key."""

    def __init__(self, source: KeySource | None) -> None:
        self._source = source

    @property
    def keys(self) -> Keys | None:
        """The valid keys; None if requests need none."""
        return None if self._source is None else self._source.current

    def authenticate(self, headers: Mapping[bytes, bytes]) -> ApiKey | None:
        """Return the key in a request's headers; None if requests need none. Raises Refusal 401."""
        if self._source is None:
            return None
        text = given_key(headers)
        if not text:
            raise missing_key()
        digest = digest_of(text)
        # Looked up by hash: the timing reveals at most the hash, which does not help to find an unknown key.
        key = None if digest is None else self._source.current.by_hash.get(digest)
        if key is None:
            raise wrong_key()
        return key


def given_key(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the key after `Bearer` in Authorization, or else x-api-key, which Anthropic's clients send; empty
    without either.
    """
    scheme, _, given = headers.get(b"authorization", b"").strip().partition(b" ")
    bearer = given.strip() if scheme.lower() == b"bearer" else b""
    return bearer or headers.get(b"x-api-key", b"").strip()
