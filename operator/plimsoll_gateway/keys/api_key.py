"""One API key as configured: its name, limits and batch limits. Only a hash of the key itself is stored."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_gateway.keys.batch_limits import BatchLimits, divided
from plimsoll_gateway.keys.limits import NAME as NAME
from plimsoll_gateway.keys.limits import KeyLimits as KeyLimits


class KeyFileError(ValueError):
    """A file is not a key file. The message has the reason, and never quotes the file: it may contain a key."""


class ApiKey(msgspec.Struct, frozen=True):
    """An API key. `name`: the file's name without `.json`. `limits`: the limits of its requests, without the part
    for batches.

    `batch`: the limits of each batch; None if the key may not create batches.
    """

    name: str
    limits: KeyLimits
    batch: BatchLimits | None = None

    @property
    def tenant(self) -> str:
        """The tenant that owns its requests' cached prefixes and stored data; the key's name if its file has none."""
        return self.limits.tenant or self.name

    def may_use(self, served_name: str) -> bool:
        """Return whether the key may use the model of this name."""
        patterns = self.limits.models
        return "*" in patterns or any(fnmatchcase(served_name, pattern) for pattern in patterns)


def read_key(file_name: str, content: bytes) -> ApiKey:
    """Parse a key file. Raises KeyFileError."""
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
    """Return the error's text. Names of unknown fields are left out, since a key may be written in place of one."""
    text = str(error)
    return "it has an unknown field" if "unknown field" in text else text
