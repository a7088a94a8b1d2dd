"""One API key as it is configured: whose it is, and what it may do. Of the key itself only a hash is here."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_gateway.keys.batch_limits import BatchLimits, divided
from plimsoll_gateway.keys.limits import NAME as NAME
from plimsoll_gateway.keys.limits import KeyLimits as KeyLimits


class KeyFileError(ValueError):
    """A file is no key's; the message says why, and never quotes it: somebody may have put a key into it."""


class ApiKey(msgspec.Struct, frozen=True):
    """A key by its name, the file's without `.json`. `limits` are those of its requests, without what is set aside for
    batches; `batch` is what each of these is held to, None where it makes none.
    """

    name: str
    limits: KeyLimits
    batch: BatchLimits | None = None

    @property
    def tenant(self) -> str:
        """Whose cached prefixes its requests may use."""
        return self.limits.tenant or self.name

    def may_use(self, served_name: str) -> bool:
        """Whether the key is for the model of that name."""
        patterns = self.limits.models
        return "*" in patterns or any(fnmatchcase(served_name, pattern) for pattern in patterns)


def read_key(file_name: str, content: bytes) -> ApiKey:
    """The key of one file. Raises KeyFileError."""
    name, dot, kind = file_name.rpartition(".")
    if not dot or kind != "json":
        raise KeyFileError("its name must end in .json")
    if not NAME.fullmatch(name):
        raise KeyFileError("its name must be 1 to 64 letters, digits, '.', '_' or '-', and .json")
    try:
        return ApiKey(name, *divided(msgspec.json.decode(content, type=KeyLimits)))
    except UNREADABLE as error:
        raise KeyFileError(_without_values(error)) from None


def _without_values(error: Exception) -> str:
    """What is wrong. Unknown fields are not named: a key that was put in a field's place would be."""
    text = str(error)
    return "it has a field that is unknown" if "unknown field" in text else text
