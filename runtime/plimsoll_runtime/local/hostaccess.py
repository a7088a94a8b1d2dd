"""How `plimsoll up` and `plimsoll status` ask the host of a run: its address, and a token for this user alone."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from pathlib import Path
from typing import Any

import aiohttp

from plimsoll_kernels.whole_file import write_whole


class HostAccess:
    """Two files in the folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.token_file = folder / "host-token"
        self._address = folder / "host.json"

    def give(self, url: str) -> None:
        """The host is about to start there, with a new token."""
        self.take_back()
        descriptor = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        write_whole(self._address, json.dumps({"url": url}).encode())

    def take_back(self) -> None:
        """There is no host any more."""
        for path in (self._address, self.token_file):
            path.unlink(missing_ok=True)

    async def report(self, session: aiohttp.ClientSession, seconds: float) -> dict[str, Any] | str | None:
        """What the host says of itself; why it says nothing; None where there is no host."""
        try:
            url = json.loads(self._address.read_text())["url"]
            token = self.token_file.read_text().strip()
        except FileNotFoundError:
            return None
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with asyncio.timeout(seconds), session.get(f"{url}/host/v1/report", headers=headers) as response:
                response.raise_for_status()
                report: dict[str, Any] = json.loads(await response.text())
                return report
        except TimeoutError:
            return f"it does not answer within {seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"it does not answer ({error})"
