"""Which API keys let a request in. They are kept as hashes; those of a file are read again when it changes."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.file_watcher import WatchedFile

LOOK_SECONDS = 1.0


class ApiKeys:
    """No keys and no file: everybody is let in."""

    def __init__(
        self, keys: Sequence[str] = (), file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises UsageError where the file has no usable key."""
        self._fixed = tuple(sha256(key.encode()).digest() for key in keys)
        self._file = None if file is None else _watch_keys(file, clock)

    @property
    def needed(self) -> bool:
        """Whether requests must carry a key."""
        return bool(self._fixed) or self._file is not None

    def check(self, headers: Mapping[str, str]) -> str | None:
        """The key that is given: after `Bearer` in Authorization, else in x-api-key, as Anthropic's clients send it.

        None where none is needed. Raises ApiError (401) for any that is wrong, after the same time for any of those.
        Names of headers are in lower case.
        """
        if not self.needed:
            return None
        token = given_key(headers)
        known = self._fixed if self._file is None else (*self._fixed, *self._file.value())
        digest = sha256(token).digest()
        matches = [hmac.compare_digest(digest, each) for each in known]
        if not any(matches):
            told = "Incorrect API key" if token else "Missing API key"
            raise ApiError(
                f"{told}: give a valid one in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return token.decode(errors="surrogateescape")


def given_key(headers: Mapping[str, str]) -> bytes:
    """The key after `Bearer` in Authorization, else that of x-api-key; or nothing.

    Headers come as Latin-1, whatever the client wrote; its bytes are what is compared.
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    bearer = given.strip() if scheme.lower() == "bearer" else ""
    return (bearer or headers.get("x-api-key", "").strip()).encode("latin-1")


def _watch_keys(path: Path, clock: Callable[[], float]) -> WatchedFile[tuple[bytes, ...]]:
    try:
        return WatchedFile(path, _hashes_of, every=LOOK_SECONDS, clock=clock)
    except OSError as error:
        raise UsageError(f"--api-key-file {path} cannot be read ({error.strerror})") from error


def _hashes_of(path: Path) -> tuple[bytes, ...]:
    """Of the keys in a file, one a line. Raises UsageError, also where it has none: a server without keys is open."""
    try:
        keys = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {path} cannot be read ({error}); give a text file, one key a line") from error
    if not keys:
        raise UsageError(f"--api-key-file {path} holds no key: write one a line, or leave the option out")
    for number, key in enumerate(keys, 1):
        if len(key) > 256 or any(c.isspace() or not c.isprintable() for c in key):
            raise UsageError(
                f"--api-key-file {path}: key {number} must be 1 to 256 printable characters without spaces"
            )
    return tuple(sha256(key.encode()).digest() for key in keys)
