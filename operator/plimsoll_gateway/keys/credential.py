"""A credential that a file holds: that by which runtimes believe what this gateway says of its clients, say."""

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


TOKEN_OPTION = "--gateway-token-file"


def read_credentials(path: Path, option: str = TOKEN_OPTION) -> tuple[str, ...]:
    """Those of a file, which `option` names: one a line, the first to be shown, the others taken beside it.

    Raises CredentialError.
    """
    try:
        lines = [line.strip() for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise CredentialError(f"{option} {path} cannot be read: {error.strerror}") from None
    found = [line for line in lines if line]
    if not found or not FORM.fullmatch(found[0]):
        raise CredentialError(
            f"{option} {path}: the first line must be 16 to 256 printable ASCII characters without spaces"
        )
    return tuple(line.decode("ascii") for line in found if FORM.fullmatch(line))


class Credential:
    """The credential as it is now. What was read last stays where the file can no longer be read."""

    def __init__(self, path: Path, option: str = TOKEN_OPTION) -> None:
        """`option` names the file in errors. Raises CredentialError."""
        self._path = path
        self._option = option
        self.all = read_credentials(path, option)
        self._failed = ""

    @property
    def current(self) -> str:
        """The one to show."""
        return self.all[0]

    def refresh(self) -> None:
        """Read it again; a failure is logged once."""
        try:
            self.all = read_credentials(self._path, self._option)
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
