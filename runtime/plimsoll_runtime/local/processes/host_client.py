"""Requests the host's report for the display."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from plimsoll_kernels.whole_file import write_whole
from plimsoll_runtime.local.text import short_memory_line, short_placement_line, state_words


class HostAccess:
    """Address and token of the host, in two files of the run folder."""

    def __init__(self, folder: Path) -> None:
        self.token_file = folder / "host-token"
        self._address = folder / "host.json"

    def give(self, url: str) -> None:
        """Write the address and a new token, before the host starts."""
        self.take_back()
        descriptor = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        write_whole(self._address, json.dumps({"url": url}).encode())

    def take_back(self) -> None:
        """Remove both files."""
        for path in (self._address, self.token_file):
            path.unlink(missing_ok=True)

    async def report(self, session: aiohttp.ClientSession, seconds: float) -> dict[str, Any] | str | None:
        """Return the host's report, the reason why there is no report, or None if there is no host."""
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
            return f"no answer within {seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"no answer ({error})"


AGAIN_SECONDS = 1.0
ANSWER_SECONDS = 5.0


class HostWatch:
    """Polls the host. `title` labels the line about memory; `say` is called as (text, style) for each change of a
    model.
    """

    def __init__(self, title: str, access: HostAccess, say: Callable[[str, str], None]) -> None:
        self._title = title
        self._access = access
        self._say = say
        self._report: dict[str, Any] | None = None
        self._states: dict[tuple[str, str], tuple[str, str]] = {}

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Poll until cancelled. If the host sends no report, `rows` is empty."""
        while True:
            report = await self._access.report(session, ANSWER_SECONDS)
            self._take(report if isinstance(report, dict) else None)
            await asyncio.sleep(AGAIN_SECONDS)

    def rows(self) -> list[tuple[str, str]]:
        """Return rows for the live table: the memory, then each model."""
        if self._report is None:
            return []
        now = time.time()
        models = [(f"  {model['name']}", short_placement_line(model, now)) for model in self._report["models"]]
        return [(self._title, short_memory_line(self._report)), *models]

    def _take(self, report: dict[str, Any] | None) -> None:
        if report is not None and self._report is None:
            self._say(f"{self._title}: {short_memory_line(report)}", "")
        self._report = report
        for model in () if report is None else report["models"]:
            key, state = (model["namespace"], model["name"]), (model["state"], model["error"] or "")
            if self._states.get(key) != state:
                self._states[key] = state
                self._say(f"{model['name']}: {state_words(model)}", "red" if model["error"] else "")
