"""The text of a key, and its stored hash.

A key has 256 random bits, so that its plain SHA-256 cannot be inverted by trying: a slow hash would add nothing to
2**256 attempts, and would let a client with wrong keys block the gateway. This holds for random keys only; keys
therefore have a fixed format that people do not choose by hand, and no other text is accepted.
"""

from __future__ import annotations

import hashlib
import re
import secrets

_FORM = re.compile(rb"plk-[A-Za-z0-9_-]{43}")
DIGEST = r"^sha256:[0-9a-f]{64}\Z"


def new_key() -> str:
    """Return a new key of 256 random bits, to be shown once."""
    return f"plk-{secrets.token_urlsafe(32)}"


def digest_of(key: bytes) -> str | None:
    """Return the stored hash of a key, `sha256:` and 64 hexadecimal digits; None if the text does not have a key's
    format.
    """
    return f"sha256:{hashlib.sha256(key).hexdigest()}" if _FORM.fullmatch(key) else None
