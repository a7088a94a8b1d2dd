"""What a runtime's `/metrics` says at one time, as far as `plimsoll status` shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

IN_FLIGHT = "plimsoll_requests_in_flight"
TOKENS = "plimsoll_generated_tokens_total"
LAST_REQUEST = "plimsoll_last_request_timestamp_seconds"
"""The runtime's series (its `api.load`)."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Values by series and by the label `model`. `at`: seconds of the monotonic clock."""

    at: float
    values: Mapping[tuple[str, str], float]

    def of(self, series: str, model: str) -> float | None:
        """One value; None where the series has none for the model."""
        return self.values.get((series, model))


async def scrape(session: aiohttp.ClientSession, url: str, seconds: float) -> Scrape | None:
    """Ask once; None for a process that does not answer in time, or not with metrics."""
    try:
        async with asyncio.timeout(seconds), session.get(f"{url}/metrics") as response:
            response.raise_for_status()
            text = await response.text()
        return Scrape(time.monotonic(), _values(text))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def _values(text: str) -> dict[tuple[str, str], float]:
    """Raises ValueError for what is no text of Prometheus' format."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(one.name, one.labels.get("model", "")): one.value for one in samples}
