"""Follows the report of the process that models share: where each model is, for the display."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from plimsoll_runtime.local.hostaccess import HostAccess
from plimsoll_runtime.local.placementtext import short_memory_line, short_placement_line, state_words

AGAIN_SECONDS = 1.0
ANSWER_SECONDS = 5.0


class HostWatch:
    """`title` begins the line about memory. `say` gets a text for each change of a model, as (text, style)."""

    def __init__(self, title: str, access: HostAccess, say: Callable[[str, str], None]) -> None:
        self._title = title
        self._access = access
        self._say = say
        self._report: dict[str, Any] | None = None
        self._states: dict[tuple[str, str], tuple[str, str]] = {}

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Ask until cancelled. While there is no host, or it does not answer, there is nothing to show."""
        while True:
            report = await self._access.report(session, ANSWER_SECONDS)
            self._take(report if isinstance(report, dict) else None)
            await asyncio.sleep(AGAIN_SECONDS)

    def rows(self) -> list[tuple[str, str]]:
        """Of the live table: the memory, then each model."""
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
