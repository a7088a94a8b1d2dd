"""The text of a key, and the hash of it that is kept.

A key is 256 random bits, so a plain SHA-256 of it cannot be turned back by trying: no slow hash makes 2**256 attempts
harder, and one that takes milliseconds would let whoever sends wrong keys stop the gateway. Because that holds for
random keys only, a key has a form that nobody chooses by hand, and nothing else is ever compared.
"""

from __future__ import annotations

import hashlib
import re
import secrets

_FORM = re.compile(rb"plk-[A-Za-z0-9_-]{43}")
DIGEST = r"^sha256:[0-9a-f]{64}\Z"


def new_key() -> str:
    """A key of 256 random bits, to be shown once."""
    return f"plk-{secrets.token_urlsafe(32)}"


def digest_of(key: bytes) -> str | None:
    """What a file holds of a key, `sha256:` and 64 hexadecimal digits; None for a text that is no key's."""
    return f"sha256:{hashlib.sha256(key).hexdigest()}" if _FORM.fullmatch(key) else None
