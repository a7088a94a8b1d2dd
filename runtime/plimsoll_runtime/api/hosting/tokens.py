"""Who may ask the host API for what: bearer tokens in files, which are read again whenever they change."""

from __future__ import annotations

import hmac
import logging
from enum import IntEnum
from pathlib import Path

from plimsoll_runtime.errors import UsageError

logger = logging.getLogger(__name__)

FILE_LIMIT = 64 * 2**10


class Rights(IntEnum):
    """What a token allows; each includes those before it."""

    NONE = 0
    WAKE = 1
    ALL = 2


class TokenFile:
    """The tokens of a file, one a line; several while they are being replaced.

    A file that cannot be read any more leaves the last tokens in force; one that holds none lets nobody in.
    """

    def __init__(self, path: Path) -> None:
        """Raises UsageError where the file cannot be read or holds no token."""
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._tokens: tuple[bytes, ...] = ()
        try:
            self._read()
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise UsageError(f"the token file {path} cannot be used ({error}); write one token a line") from error
        if not self._tokens:
            raise UsageError(f"the token file {path} holds no token; write one a line")

    def tokens(self) -> tuple[bytes, ...]:
        """As the file says now."""
        try:
            self._read()
        except (OSError, ValueError) as error:
            logger.error("the token file %s cannot be used, its last tokens go on counting: %s", self._path, error)
        return self._tokens

    def _read(self) -> None:
        status = self._path.stat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        self._stamp = stamp  # whatever comes of it: a file that is of no use is told of once
        if status.st_size > FILE_LIMIT:
            raise ValueError(f"it is larger than {FILE_LIMIT} bytes")
        lines = self._path.read_bytes().splitlines()
        self._tokens = tuple(line.strip() for line in lines if line.strip())
        if not self._tokens:
            logger.error("the token file %s holds no token any more: nobody is let in by it", self._path)


class Guard:
    """The rights of who asks. Without files everybody has all of them: to be had on loopback only."""

    def __init__(self, everything: TokenFile | None, wake: TokenFile | None) -> None:
        """Raises UsageError where nobody could have all rights."""
        if wake is not None and everything is None:
            raise UsageError("--wake-token-file goes with --host-token-file: nobody could place models")
        self._files = ((Rights.ALL, everything), (Rights.WAKE, wake))

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        return all(file is None for _, file in self._files)

    def rights(self, authorization: str | None) -> Rights:
        """What the value of an Authorization header allows. Takes the same time for any token that is wrong."""
        if self.is_open:
            return Rights.ALL
        scheme, _, given = (authorization or "").partition(" ")
        # Headers come as Latin-1, whatever the client wrote; its bytes are what is compared.
        token = given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        allowed = [
            rights
            for rights, file in self._files
            for known in (file.tokens() if file is not None else ())
            if hmac.compare_digest(token, known)
        ]
        return max(allowed, default=Rights.NONE)
