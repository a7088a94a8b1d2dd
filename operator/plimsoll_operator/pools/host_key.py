"""Tokens of the host API: made for each pool from a key that the chart keeps, and known to pods as hashes alone."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from plimsoll_operator.identity import ObjectKey

FILE = "operator"
LEAST_BYTES = 32


class HostKeyError(Exception):
    """The key cannot be used; the message says why. It never has a part of it."""


@dataclass(frozen=True, slots=True)
class HostKey:
    """The operator's key, which is never shown."""

    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """A name for it: pods that were made with another do not know the tokens of this one."""
        return hashlib.sha256(self.key).hexdigest()[:16]

    def token(self, pool: ObjectKey) -> str:
        """The bearer token for the hosts of a pool, in hex."""
        return self._derived(f"host/{pool}")

    def token_hash(self, pool: ObjectKey) -> str:
        """What the pods of a pool are given: SHA-256 in hex. Nobody gets a token of 256 bits back out of it."""
        return hashlib.sha256(self.token(pool).encode()).hexdigest()

    def mark(self, secret: str) -> str:
        """A name for somebody else's secret, from which nobody learns anything of it."""
        return self._derived(f"mark/{secret}")

    def _derived(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def read_key(folder: Path) -> HostKey:
    """From a mounted Secret. Raises HostKeyError."""
    path = folder / FILE
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise HostKeyError(f"the key {path} cannot be read: {error.strerror}") from error
    if len(key) < LEAST_BYTES:
        raise HostKeyError(f"the key {path} has {len(key)} bytes; it needs {LEAST_BYTES} random ones")
    return HostKey(key)
