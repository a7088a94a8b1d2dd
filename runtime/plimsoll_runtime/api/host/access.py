"""Who may ask the host API: who has a bearer token of a file, which is read again when it changes, or of known hash.

Tokens are random and long (256 bits), so that their plain SHA-256 gives nobody a token.
"""

from __future__ import annotations

import hmac
import logging
import re
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.file_watcher import WatchedFile

logger = logging.getLogger(__name__)

FILE_LIMIT = 64 * 2**10


class Tokens(Protocol):
    """Tokens that let in."""

    def hashes(self) -> tuple[bytes, ...]:
        """Their SHA-256 as they are now."""


class TokenHashes:
    """Tokens that are known by their SHA-256 alone, in hexadecimal digits and with commas between them."""

    def __init__(self, text: str, name: str) -> None:
        """`name` says where they come from. Raises UsageError for what is no hash."""
        given = [word.strip() for word in text.split(",")]
        if not all(re.fullmatch("[0-9a-f]{64}", word) for word in given):
            raise UsageError(
                f"{name} must be SHA-256 hashes of tokens: 64 hexadecimal digits each, with commas between"
            )
        self._hashes = tuple(bytes.fromhex(word) for word in given)

    def hashes(self) -> tuple[bytes, ...]:
        """See `Tokens`."""
        return self._hashes


class TokenFile:
    """The tokens of a file, one a line; several while they are being replaced.

    A file that cannot be read any more leaves the last tokens in force; one that holds none lets nobody in.
    """

    def __init__(self, path: Path) -> None:
        """Raises UsageError where the file cannot be read or holds no token."""
        try:
            self._file = WatchedFile(path, hashes_of)
        except (OSError, ValueError) as error:
            raise UsageError(f"the token file {path} cannot be used ({error}); write one token a line") from error
        if not self._file.value():
            raise UsageError(f"the token file {path} holds no token; write one a line")

    def hashes(self) -> tuple[bytes, ...]:
        """See `Tokens`: as the file says now."""
        return self._file.value()


def hashes_of(path: Path) -> tuple[bytes, ...]:
    """Of the tokens in a file. Raises OSError, or ValueError for what is no file of tokens."""
    if path.stat().st_size > FILE_LIMIT:
        raise ValueError(f"it is larger than {FILE_LIMIT} bytes")
    hashes = tuple(sha256(line.strip()).digest() for line in path.read_bytes().splitlines() if line.strip())
    if not hashes:
        logger.error("the token file %s holds no token: nobody is let in by it", path)
    return hashes


class Guard:
    """Lets in who has a token. Without tokens it lets in everybody: to be had on loopback only."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        return self._tokens is None

    def lets_in(self, authorization: str | None) -> bool:
        """Whether the value of an Authorization header has a token. Takes the same time for any that is wrong."""
        if self._tokens is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        # Headers come as Latin-1, whatever the client wrote; its bytes are what is compared.
        token = sha256(given.strip().encode("latin-1") if scheme.lower() == "bearer" else b"").digest()
        return any(hmac.compare_digest(token, known) for known in self._tokens.hashes())
