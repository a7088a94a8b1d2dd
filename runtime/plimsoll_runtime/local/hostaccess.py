"""How `plimsoll status` reaches the host of a run: its API's address, and a token that only this user can read."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from plimsoll_kernels.whole_file import write_whole

SECONDS = 2.0


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

    def place(self) -> tuple[str, str] | None:
        """The URL and the token of its API; None if there is no host."""
        try:
            url: str = json.loads(self._address.read_text())["url"]
            return url, self.token_file.read_text().strip()
        except FileNotFoundError:
            return None

    def report(self) -> dict[str, Any] | str | None:
        """What the host says of itself; why it says nothing; None where there is no host."""
        place = self.place()
        if place is None:
            return None
        url, token = place
        request = Request(f"{url}/host/v1/report", headers={"Authorization": f"Bearer {token}"})
        try:
            with build_opener(ProxyHandler({})).open(request, timeout=SECONDS) as response:
                report: dict[str, Any] = json.load(response)
                return report
        except (URLError, OSError, ValueError) as error:
            return f"it does not answer ({error})"
