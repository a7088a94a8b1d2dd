"""One API key as it is configured: whose it is, and what it may do. Of the key itself only a hash is here."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from plimsoll_cluster.unreadable import UNREADABLE
from plimsoll_gateway.keys.secret import DIGEST

# As the runtime takes it for a tenant's name (tests/contract).
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

Count = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Hash = Annotated[str, msgspec.Meta(pattern=DIGEST)]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class KeyFileError(ValueError):
    """A file is no key's; the message says why, and never quotes it: somebody may have put a key into it."""


class Terms(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a key's file says. `hashes` are of the keys that are valid, two while one replaces the other.

    `models`: patterns of served names (`*`, `?`). `requests_per_minute`, `tokens_per_minute` and `streams` (requests
    under way at once) are limits over all gateways; None is none. Of keys that wait, those of the highest `priority` go
    first, and those of one priority share by `weight`. `tenant`: keys of one tenant may use each other's cached
    prefixes; None is one of its own.
    """

    hashes: Annotated[tuple[Hash, ...], msgspec.Meta(min_length=1, max_length=8)]
    models: Annotated[tuple[Pattern, ...], msgspec.Meta(min_length=1, max_length=256)] = ("*",)
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    streams: Count | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    tenant: Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}\Z")] | None = None


class ApiKey(msgspec.Struct, frozen=True):
    """A key by its name, the file's without `.json`."""

    name: str
    terms: Terms

    @property
    def tenant(self) -> str:
        """Whose cached prefixes its requests may use."""
        return self.terms.tenant or self.name

    def may_use(self, served_name: str) -> bool:
        """Whether the key is for the model of that name."""
        return any(fnmatchcase(served_name, pattern) for pattern in self.terms.models)


def read_key(file_name: str, content: bytes) -> ApiKey:
    """The key of one file. Raises KeyFileError."""
    name, dot, kind = file_name.rpartition(".")
    if not dot or kind != "json":
        raise KeyFileError("its name must end in .json")
    if not NAME.fullmatch(name):
        raise KeyFileError("its name must be 1 to 64 letters, digits, '.', '_' or '-', and .json")
    try:
        return ApiKey(name, msgspec.json.decode(content, type=Terms))
    except UNREADABLE as error:
        raise KeyFileError(_without_values(error)) from None


def _without_values(error: Exception) -> str:
    """What is wrong. Unknown fields are not named: a key that was put in a field's place would be."""
    text = str(error)
    return "it has a field that is unknown" if "unknown field" in text else text
