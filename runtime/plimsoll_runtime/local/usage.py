"""Measures what the processes of laptop runs use (memory, requests, tokens per second), for `plimsoll status`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil

from plimsoll_runtime.local.processes.probes import IN_FLIGHT, LAST_REQUEST, TOKENS, Scrape, scrape
from plimsoll_runtime.local.processes.status_board import HOST_SLOT, Phase, first_line
from plimsoll_runtime.local.run_folder import RunFolder
from plimsoll_runtime.local.text import WORDS, cut, duration_text, size_text
from plimsoll_runtime.residency.spec import ModelName

ANSWER_SECONDS = 1.0
"""Time limit for the answer of a process."""
SAMPLE_SECONDS = 1.0
"""Interval between two samples of the token counter."""

Record = dict[str, Any]
"""The result of `RunFolder.read`."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage by a model or a replica: bytes of memory, requests in flight (in a host also waiting ones), and generated
    tokens per second. `last_request`: when the last request ended, in seconds since the epoch, or None.
    """

    memory: int = 0
    requests: int = 0
    tokens_per_second: float = 0.0
    last_request: float | None = None

    def __add__(self, other: Usage) -> Usage:
        ends = [each for each in (self.last_request, other.last_request) if each is not None]
        return Usage(
            self.memory + other.memory,
            self.requests + other.requests,
            self.tokens_per_second + other.tokens_per_second,
            max(ends, default=None),
        )

    def document(self, now: float) -> dict[str, float | None]:
        """Return the fields of `plimsoll status --json`. `now`: seconds since the epoch."""
        return {
            "memoryBytes": self.memory,
            "requests": self.requests,
            "tokensPerSecond": round(self.tokens_per_second, 1),
            "idleSeconds": None if self.last_request is None else round(max(0.0, now - self.last_request), 1),
        }


@dataclass(frozen=True, slots=True)
class Looks:
    """Metrics of a process at two times, SAMPLE_SECONDS apart."""

    first: Scrape
    second: Scrape

    def usage(self, model: ModelName, memory: int) -> Usage:
        """Return the model's usage. If a counter has decreased, the process was restarted and its counter
        started at 0.
        """
        before, after = (look.of(TOKENS, model) or 0.0 for look in (self.first, self.second))
        seconds = self.second.at - self.first.at
        rate = (after - (before if before <= after else 0.0)) / seconds if seconds > 0 else 0.0
        in_flight, last = (self.second.of(series, model) for series in (IN_FLIGHT, LAST_REQUEST))
        return Usage(memory, int(in_flight or 0), rate, last)


async def observe(runs: Iterable[tuple[RunFolder, Record]]) -> list[Record]:
    """Return the records, extended with measurements; all processes are asked concurrently.

    Each model and each replica gets `usage` (None for one that does not answer), each replica `answers`, and a run with
    a host process its report as `host`.
    """
    async with aiohttp.ClientSession(trust_env=False) as session:
        return list(await asyncio.gather(*(_observed(session, run, record) for run, record in runs)))


async def _observed(session: aiohttp.ClientSession, run: RunFolder, record: Record) -> Record:
    replicas = {replica["slot"]: replica for model in record["models"] for replica in model["replicas"]}
    asked = {slot: replica["url"] for slot, replica in replicas.items() if replica["pid"] and replica["url"]}
    report, *looks = await asyncio.gather(
        run.host_access.report(session, ANSWER_SECONDS), *(_looks(session, url) for url in asked.values())
    )
    found = dict(zip(asked, looks, strict=True))
    models = [_model(model, report, found) for model in record["models"]]
    return {**record, "models": models, **({} if report is None else {"host": report})}


async def _looks(session: aiohttp.ClientSession, url: str) -> Looks | None:
    first = await scrape(session, url, ANSWER_SECONDS)
    if first is None:
        return None
    await asyncio.sleep(SAMPLE_SECONDS)
    second = await scrape(session, url, ANSWER_SECONDS)
    return None if second is None else Looks(first, second)


def _model(model: Mapping[str, Any], report: Record | str | None, found: Mapping[str, Looks | None]) -> Record:
    """Return the model's record with the usage of its replicas; `found` has the metrics of each slot, None if it did
    not answer.
    """
    now, key = time.time(), ModelName(model["namespace"], model["name"])
    shared = any(replica["slot"] == HOST_SLOT for replica in model["replicas"])
    replicas: list[Record] = []
    usages: list[Usage] = []
    for replica in model["replicas"]:
        looks = found.get(replica["slot"])
        usage = None
        if looks is not None and not shared:
            usage = looks.usage(key, resident_bytes(replica["pid"]))
        elif looks is not None and (placed := placed_of(report, model)) is not None:
            usage = _placed_usage(looks, key, placed)
        usages += [] if usage is None else [usage]
        answers = looks is not None and not (shared and isinstance(report, str))
        replicas.append({**replica, "answers": answers, "usage": None if usage is None else usage.document(now)})
    return {**model, "replicas": replicas, "usage": sum(usages, Usage()).document(now) if usages else None}


def placed_of(report: Record | str | None, model: Mapping[str, Any]) -> Record | None:
    """Return the entry of a model in a host's report, or None."""
    entries: Sequence[Record] = report["models"] if isinstance(report, dict) else ()
    return next((e for e in entries if (e["namespace"], e["name"]) == (model["namespace"], model["name"])), None)


def _placed_usage(looks: Looks, key: ModelName, placed: Mapping[str, Any]) -> Usage:
    """Return the usage of a model in a host. Its memory is its grant, or its image while it sleeps."""
    granted = placed["weights"] + placed["workspace"] + placed["kv"]
    usage = looks.usage(key, granted or placed["hostBytes"])
    return Usage(usage.memory, placed["active"] + placed["waiting"], usage.tokens_per_second, usage.last_request)


def is_ready(replica: Mapping[str, Any]) -> bool:
    """Return whether a replica of an observed record is ready and answers."""
    return replica["phase"] == Phase.READY.value and bool(replica["answers"])


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and all its descendants; ended processes count 0."""
    try:
        leader = psutil.Process(pid)
        processes = [leader, *leader.children(recursive=True)]
    except psutil.Error:
        return 0
    return sum(map(_resident, processes))


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


HEAD = ("MODEL", "STATE", "MEMORY", "REQUESTS", "TOKENS/S", "IDLE")
WIDEST_STATE = 18
UNKNOWN = "-"
NO_ANSWER = "no answer"
SILENT = f"{NO_ANSWER} within {ANSWER_SECONDS:g} s"
_PHASES = {Phase.WAITING.value: "restarting"}
"""Phases that the table names differently from the record."""


def rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each model of an observed record, with the columns of HEAD."""
    host = record.get("host")
    return [
        (model["servedNames"][0], cut(_state(model, host), WIDEST_STATE), *_figures(model))
        for model in record["models"]
    ]


def notes(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each process that does not serve, and for each failed model of a host."""
    told = set()
    for model in record["models"]:
        for replica in model["replicas"]:
            if not is_ready(replica) and replica["slot"] not in told:
                told.add(replica["slot"])
                yield f"{replica['slot']}: {_why(replica)}"
        if (placed := placed_of(record.get("host"), model)) is not None and placed["error"]:
            yield f"{model['servedNames'][0]}: {first_line(placed['error'])}"
    gateway = record["gateway"]
    if gateway["phase"] != Phase.READY.value:
        yield f"{gateway['slot']}: {gateway['detail']}"


def _why(replica: Mapping[str, Any]) -> str:
    return SILENT if replica["phase"] == Phase.READY.value else str(replica["detail"])


def _state(model: Mapping[str, Any], host: Any) -> str:
    replicas = model["replicas"]
    if not replicas:
        return "off"
    if (placed := placed_of(host, model)) is not None:
        return str(WORDS.get(placed["state"], placed["state"]))
    if len(replicas) > 1:
        return f"{sum(map(is_ready, replicas))}/{len(replicas)} ready"
    [replica] = replicas
    phase = replica["phase"]
    return NO_ANSWER if phase == Phase.READY.value and not replica["answers"] else _PHASES.get(phase, phase)


def _figures(model: Mapping[str, Any]) -> tuple[str, ...]:
    usage = model["usage"]
    if usage is None:
        return (UNKNOWN,) * 4
    rate = f"{usage['tokensPerSecond']:.0f}"
    return (size_text(usage["memoryBytes"]), str(usage["requests"]), rate, _idle(usage))


def _idle(usage: Mapping[str, Any]) -> str:
    if usage["requests"]:
        return UNKNOWN
    return "never used" if usage["idleSeconds"] is None else duration_text(usage["idleSeconds"])
