"""Runs users, probes and readings in parallel for a while, and counts their results."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from soak.client import send
from soak.growth import Reading
from soak.server import SoakedServer
from soak.traffic import WHOLE, Ask, Traffic, probes

READING_SECONDS = 3.0
KEPT_FINDINGS = 20


@dataclass(slots=True)
class Tally:
    """Results so far. `outcomes`: number of requests by kind and outcome. `findings` has the first faults; `wrong`
    counts all of them.
    """

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    tokens: int = 0
    probes: int = 0
    wrong: int = 0
    findings: list[str] = field(default_factory=list)
    readings: dict[str, list[Reading]] = field(default_factory=dict)
    most_threads: dict[str, int] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        """Number of finished requests."""
        return sum(sum(by_outcome.values()) for by_outcome in self.outcomes.values())

    def count(self, ask: Ask, outcome: str, tokens: int) -> None:
        """Count a finished request; an outcome that it does not expect is a fault."""
        self.outcomes.setdefault(ask.kind, Counter())[outcome] += 1
        self.tokens += tokens
        if outcome not in ask.expected:
            self.complain(f"{ask.kind}: {outcome!r}, expected {' or '.join(sorted(ask.expected))}")

    def complain(self, finding: str) -> None:
        """Record a fault."""
        self.wrong += 1
        if len(self.findings) < KEPT_FINDINGS:
            self.findings.append(finding)


class Load:
    """A fixed number of users of one server: each sends a request, waits for its end, and sends the next."""

    def __init__(self, server: SoakedServer, session: aiohttp.ClientSession, users: Sequence[Traffic]) -> None:
        self._server = server
        self._session = session
        self._users = users
        self._probes = probes()
        self._known: dict[str, tuple[str, ...]] = {}
        self._began = time.monotonic()

    async def learn(self, tally: Tally) -> None:
        """Record the probes' outputs, each alone on the server."""
        for probe in self._probes:
            answer = await send(self._session, self._server.url, probe)
            tally.count(probe, answer.outcome, answer.tokens)
            self._known[probe.kind] = answer.texts

    async def run(self, seconds: float, tally: Tally, show: Callable[[Tally], None]) -> None:
        """Run the load for this time, then wait until every request has ended. Ends early if the server does."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for traffic in self._users:
                group.create_task(self._use(traffic, end, tally))
            group.create_task(self._probe(end, tally))
            group.create_task(self._read(end, tally, show))

    async def _use(self, traffic: Traffic, end: float, tally: Tally) -> None:
        while self._goes_on(end):
            ask = traffic.next()
            answer = await send(self._session, self._server.url, ask)
            tally.count(ask, answer.outcome, answer.tokens)

    async def _probe(self, end: float, tally: Tally) -> None:
        for probe in itertools.cycle(self._probes):
            if not self._goes_on(end):
                return
            answer = await send(self._session, self._server.url, probe)
            tally.count(probe, answer.outcome, answer.tokens)
            tally.probes += 1
            if answer.outcome == WHOLE and (other := difference(self._known[probe.kind], answer.texts)):
                tally.complain(f"{probe.kind}: another text than at the start, {other}")

    async def _read(self, end: float, tally: Tally, show: Callable[[Tally], None]) -> None:
        while self._goes_on(end):
            now = time.monotonic() - self._began
            for name, footprint in self._server.footprints().items():
                tally.readings.setdefault(name, []).append(Reading(round(now, 1), footprint.resident))
                tally.most_threads[name] = max(footprint.threads, tally.most_threads.get(name, 0))
            show(tally)
            await asyncio.sleep(READING_SECONDS)

    def _goes_on(self, end: float) -> bool:
        return time.monotonic() < end and self._server.alive


def difference(known: Sequence[str], now: Sequence[str]) -> str | None:
    """Return where an output first differs from the known one, as text; None if they are equal."""
    if tuple(known) == tuple(now):
        return None
    for choice, (before, after) in enumerate(zip(known, now, strict=False)):
        words = zip(before.split(), after.split(), strict=False)
        for place, (a, b) in enumerate(words):
            if a != b:
                return f"choice {choice} from word {place} on: {b!r} instead of {a!r}"
    return "of another length"


def merged(outcomes: Sequence[Mapping[str, Counter[str]]]) -> dict[str, dict[str, int]]:
    """Merge the histograms of several tallies, with kinds and outcomes in order."""
    kinds = sorted({kind for one in outcomes for kind in one})
    return {
        kind: dict(sorted(sum((one.get(kind, Counter()) for one in outcomes), Counter[str]()).items()))
        for kind in kinds
    }
