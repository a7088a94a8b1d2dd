"""A credential in a file, such as the one that proves to runtimes that a request comes through this gateway."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# The runtime's format (tests/contract).
FORM = re.compile(rb"[!-~]{16,256}")


class CredentialError(ValueError):
    """The file has no valid credential; the message has the reason, and never quotes the file."""


TOKEN_OPTION = "--gateway-token-file"


def read_credentials(path: Path, option: str = TOKEN_OPTION) -> tuple[str, ...]:
    """Read the credentials of a file, one a line: the first is the one to send, the others are accepted too.

    `option` names the file in errors. Raises CredentialError.
    """
    try:
        lines = [line.strip() for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise CredentialError(f"{option}: cannot read {path}: {error.strerror}") from None
    found = [line for line in lines if line]
    if not found or not FORM.fullmatch(found[0]):
        raise CredentialError(
            f"{option}: the first line of {path} must be 16 to 256 printable ASCII characters without spaces"
        )
    return tuple(line.decode("ascii") for line in found if FORM.fullmatch(line))


class Credential:
    """The current credential. If the file becomes unreadable, the last one stays."""

    def __init__(self, path: Path, option: str = TOKEN_OPTION) -> None:
        """`option` names the file in errors. Raises CredentialError."""
        self._path = path
        self._option = option
        self.all = read_credentials(path, option)
        self._failed = ""

    @property
    def current(self) -> str:
        """The credential to send."""
        return self.all[0]

    def refresh(self) -> None:
        """Read the file again. A failure is logged once."""
        try:
            self.all = read_credentials(self._path, self._option)
            self._failed = ""
        except CredentialError as error:
            if str(error) != self._failed:
                log.error("%s; continuing with the last credential", error)
            self._failed = str(error)

    async def follow(self) -> None:
        """Refresh until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.refresh()
