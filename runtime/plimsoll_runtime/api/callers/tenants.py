"""Who shares cached prefixes with whom: every API key is a tenant of its own, unless sharing was asked for.

`usage.cached_tokens` and the time to the first token tell whether a prefix was cached, block by block. Shared between
keys, that would tell one client how much of another's prompt it has guessed.
"""

from __future__ import annotations

from hashlib import pbkdf2_hmac

ROUNDS = 10_000
"""Of the hash that makes a tenant's name from its key: about 5 ms, once for each key. The names of cached blocks derive
from it, and on a disk they outlive the server: guessing keys from them costs as much for each guess."""
_PURPOSE = b"plimsoll/tenant"


class Tenants:
    """The tenant of each API key. Each has what is kept for it to itself; where `shared`, not so cached prefixes."""

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._names: dict[str, str] = {}

    def of(self, key: str | None) -> str:
        """The name of a key's tenant, the same in every run of the server; empty for no key."""
        if key is None:
            return ""
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = pbkdf2_hmac("sha256", key.encode(), _PURPOSE, ROUNDS).hex()
        return name

    def cached_as(self, name: str) -> str:
        """Whose cached prefixes the tenant of that name uses: empty where all use the same. It must hold no "/" (see
        `salted`).
        """
        return "" if self._shared else name


def salted(tenant: str, own: str | None) -> str:
    """The salt of a request's prefixes: its tenant's name, and what it asked for itself within that."""
    return f"{tenant}/{own or ''}" if tenant else own or ""
