"""Who asks: the key that a request carries, found before anything else of the request is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from plimsoll_gateway.errors.refusals import missing_key, wrong_key
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.keys.key_folder import Keys
from plimsoll_gateway.keys.secret import digest_of


class KeySource(Protocol):
    """Where the keys are."""

    @property
    def current(self) -> Keys:
        """Those that are valid now."""


class Keyring:
    """Lets in who has a key. `source` None: there are no keys, and everybody is let in as nobody in particular."""

    def __init__(self, source: KeySource | None) -> None:
        self._source = source

    @property
    def keys(self) -> Keys | None:
        """Those that are valid now; None where nobody needs one."""
        return None if self._source is None else self._source.current

    def authenticate(self, headers: Mapping[bytes, bytes]) -> ApiKey | None:
        """The key of a request's headers; None where nobody needs one. Raises Refusal 401."""
        if self._source is None:
            return None
        text = given_key(headers)
        if not text:
            raise missing_key()
        digest = digest_of(text)
        # Found by its hash: how long the search takes tells of the hash at most, and that of no key that is not known.
        key = None if digest is None else self._source.current.by_hash.get(digest)
        if key is None:
            raise wrong_key()
        return key


def given_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key after `Bearer` in Authorization, else that of x-api-key, as Anthropic's clients send it; or nothing."""
    scheme, _, given = headers.get(b"authorization", b"").strip().partition(b" ")
    bearer = given.strip() if scheme.lower() == b"bearer" else b""
    return bearer or headers.get(b"x-api-key", b"").strip()
