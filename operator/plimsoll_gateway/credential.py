"""The credential by which runtimes believe what this gateway says of its clients: the first line of a file."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# As the runtime takes it (tests/contract).
FORM = re.compile(rb"[!-~]{16,256}")


class CredentialError(ValueError):
    """The file holds no credential; the message says why, and never what it holds."""


def read_credential(path: Path) -> str:
    """The credential of a file. Raises CredentialError. Further lines are those that runtimes take beside it."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise CredentialError(f"--gateway-token-file {path} cannot be read: {error.strerror}") from None
    first = next((line.strip() for line in lines if line.strip()), b"")
    if not FORM.fullmatch(first):
        raise CredentialError(
            f"--gateway-token-file {path}: the first line must be 16 to 256 printable ASCII characters without spaces"
        )
    return first.decode("ascii")


class Credential:
    """The credential as it is now. What was read last stays where the file can no longer be read."""

    def __init__(self, path: Path) -> None:
        """Raises CredentialError."""
        self._path = path
        self.current = read_credential(path)
        self._failed = ""

    def refresh(self) -> None:
        """Read it again; a failure is logged once."""
        try:
            self.current = read_credential(self._path)
            self._failed = ""
        except CredentialError as error:
            if str(error) != self._failed:
                log.error("%s; going on with what it held before", error)
            self._failed = str(error)

    async def follow(self) -> None:
        """Refresh for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.refresh()
