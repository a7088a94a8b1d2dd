"""Tokens of the host API: made for each pool from two keys that the chart keeps, and known to pods as hashes alone."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from plimsoll_operator.identity import ObjectKey

OPERATOR, GATEWAY = "operator", "gateway"
LEAST_BYTES = 32


class KeysError(Exception):
    """The keys cannot be used; the message says why. It never has a part of one."""


@dataclass(frozen=True, slots=True)
class TokenHashes:
    """What a pod knows of its tokens: SHA-256 in hex of the one that may do everything, and of that which may wake."""

    everything: str
    wake: str


@dataclass(frozen=True, slots=True)
class HostKeys:
    """The operator's key and the gateway's. Neither is ever shown."""

    operator: bytes = field(repr=False)
    gateway: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """A name for both: pods that were made with others do not know the tokens of these."""
        return hashlib.sha256(b"\0".join((self.operator, self.gateway))).hexdigest()[:16]

    def token(self, pool: ObjectKey) -> str:
        """The operator's bearer token for the hosts of a pool."""
        return host_token(self.operator, pool)

    def mark(self, secret: str) -> str:
        """A name for somebody else's secret, from which nobody learns anything of it."""
        return hmac.new(self.operator, f"mark/{secret}".encode(), hashlib.sha256).hexdigest()

    def hashes(self, pool: ObjectKey) -> TokenHashes:
        """What the pods of a pool are given. Nobody gets a token of 256 bits back out of its hash."""
        return TokenHashes(_hash(self.token(pool)), _hash(host_token(self.gateway, pool)))


def host_token(key: bytes, pool: ObjectKey) -> str:
    """The token that a key makes for a pool, in hex."""
    return hmac.new(key, f"host/{pool}".encode(), hashlib.sha256).hexdigest()


def read_keys(folder: Path) -> HostKeys:
    """From a mounted Secret. Raises KeysError."""
    found = {}
    for name in (OPERATOR, GATEWAY):
        try:
            found[name] = (folder / name).read_bytes().strip()
        except OSError as error:
            raise KeysError(f"the key {folder / name} cannot be read: {error.strerror}") from error
        if len(found[name]) < LEAST_BYTES:
            raise KeysError(f"the key {folder / name} has {len(found[name])} bytes; it needs {LEAST_BYTES} random ones")
    if found[OPERATOR] == found[GATEWAY]:
        raise KeysError(f"the keys in {folder} are equal: the gateway could do what the operator alone may")
    return HostKeys(found[OPERATOR], found[GATEWAY])


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
