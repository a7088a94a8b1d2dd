"""Access to the host API: bearer tokens from a file, which is read again when it changes, or known by their hashes.

Tokens are random and long (256 bits), so their plain SHA-256 does not reveal them.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.file_watcher import WatchedFile

logger = logging.getLogger(__name__)

FILE_LIMIT = 64 * 2**10


Tokens = Callable[[], tuple[bytes, ...]]
"""Returns the SHA-256 of each token that is valid at present."""


def hashed_tokens(text: str, name: str) -> Tokens:
    """Return the tokens whose SHA-256 hashes are in `text`, as hexadecimal digits separated by commas. Error messages
    call the source `name`. Raises UsageError for an invalid hash."""
    given = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9a-f]{64}", word) for word in given):
        raise UsageError(f"{name} must be comma-separated SHA-256 hashes of tokens, each of 64 hexadecimal digits")
    hashes = tuple(bytes.fromhex(word) for word in given)
    return lambda: hashes


def file_tokens(path: Path) -> Tokens:
    """Return the tokens of a file, one on each line; several are valid while they are rotated.

    If the file later becomes unreadable, its last tokens stay valid; if it becomes empty, no token is valid. Raises
    UsageError if the file cannot be read now, or has no token.
    """
    try:
        file = WatchedFile(path, hashes_of)
    except (OSError, ValueError) as error:
        raise UsageError(f"the token file {path} cannot be used ({error}); write one token on each line") from error
    if not file.value():
        raise UsageError(f"the token file {path} has no token; write one token on each line")
    return file.value


def hashes_of(path: Path) -> tuple[bytes, ...]:
    """Return the hashes of a file's tokens. Raises OSError, or ValueError if the file is too large."""
    if path.stat().st_size > FILE_LIMIT:
        raise ValueError(f"it is larger than the limit of {FILE_LIMIT} bytes")
    hashes = tuple(sha256(line.strip()).digest() for line in path.read_bytes().splitlines() if line.strip())
    if not hashes:
        logger.error("the token file %s has no token; all requests are refused", path)
    return hashes


class Guard:
    """Checks bearer tokens. Without tokens it accepts every request; `make_guard` allows that on loopback only."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens

    @property
    def is_open(self) -> bool:
        """Whether no token is required."""
        return self._tokens is None

    def lets_in(self, authorization: str | None) -> bool:
        """Return whether an Authorization header has a valid token. Takes the same time for all invalid tokens."""
        if self._tokens is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        # Headers are decoded as Latin-1, whatever the client wrote; encoding restores the bytes.
        token = sha256(given.strip().encode("latin-1") if scheme.lower() == "bearer" else b"").digest()
        return any(hmac.compare_digest(token, known) for known in self._tokens())
