"""Reads `/health` and `/metrics` of a runtime."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import aiohttp

from plimsoll_runtime.residency.spec import ModelName
from plimsoll_runtime.utils.progress import Transfer

TIMEOUT = aiohttp.ClientTimeout(total=5)


class State(Enum):
    """State of a process, as `/health` reports it."""

    SILENT = "silent"  # nothing listens yet
    LOADING = "loading"
    READY = "ready"
    UNREADY = "unready"  # it reports that it cannot serve


@dataclass(frozen=True, slots=True)
class Health:
    """Result of one probe. While loading: the `stage`, its `fraction` (0 to 1) if known, and the `transfer` of a
    download.
    """

    state: State
    stage: str = ""
    fraction: float | None = None
    transfer: Transfer | None = None


async def ask_health(session: aiohttp.ClientSession, url: str) -> Health:
    """Probe once; no answer is `State.SILENT`."""
    try:
        async with session.get(url, timeout=TIMEOUT) as response:
            status, text = response.status, await response.text()
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
        return Health(State.SILENT)
    return _read(status, text)


def _read(status: int, text: str) -> Health:
    if status == 200:
        return Health(State.READY)
    try:
        body = json.loads(text)
    except ValueError:
        return Health(State.UNREADY)
    if not isinstance(body, dict) or body.get("status") != "loading":
        return Health(State.UNREADY)
    fraction = body.get("fraction")
    known = float(fraction) if isinstance(fraction, int | float) else None
    return Health(State.LOADING, str(body.get("stage") or ""), known, _transfer(body.get("bytes")))


def _transfer(told: object) -> Transfer | None:
    if not isinstance(told, dict):
        return None
    done, total = told.get("done"), told.get("total")
    return Transfer(done, total) if isinstance(done, int) and isinstance(total, int) else None


IN_FLIGHT = "plimsoll_requests_in_flight"
TOKENS = "plimsoll_generated_tokens_total"
LAST_REQUEST = "plimsoll_last_request_timestamp_seconds"
"""Metrics of the runtime (defined in its `api.telemetry`)."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Values by metric and by the labels `namespace` and `model`. `at`: seconds of the monotonic clock."""

    at: float
    values: Mapping[tuple[str, ModelName], float]

    def of(self, series: str, model: ModelName) -> float | None:
        """Return one value, or None if the metric has none for the model."""
        return self.values.get((series, model))


async def scrape(session: aiohttp.ClientSession, url: str, seconds: float) -> Scrape | None:
    """Read the metrics once. Return None if the process does not answer in time, or not with metrics."""
    try:
        async with asyncio.timeout(seconds), session.get(f"{url}/metrics") as response:
            response.raise_for_status()
            text = await response.text()
        return Scrape(time.monotonic(), _values(text))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def _values(text: str) -> dict[tuple[str, ModelName], float]:
    """Parse Prometheus' text format. Raises ValueError for other texts."""
    from prometheus_client.parser import text_string_to_metric_families

    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {
        (one.name, ModelName(one.labels.get("namespace", ""), one.labels.get("model", ""))): one.value
        for one in samples
    }
