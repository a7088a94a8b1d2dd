"""`make fuzz`: thousands of requests to every endpoint, generated from the servers' own OpenAPI document and damaged.

The servers must not fail, hang, leak memory or file descriptors, or answer differently afterwards. The exit status is 1
if they do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.judge import Judge
from fuzz.requests import CLASSIFIER, EMBEDDER, GENERATOR, MODEL, Fuzzed, Known, Requests, request
from fuzz.servers import running
from fuzz.wire import Hung, send
from provenance import provenance
from soak import verdict
from soak.growth import FEWEST, MIB, Reading, growth
from soak.server import Footprint, ServerProcess

WARM_UP = 0.1
READINGS = 60
"""Number of memory readings, spread over the requests."""
FEWEST_JUDGED = 2000
"""Minimum number of requests for judging memory, because it still grows during the first requests."""
ALLOWED_GROWTH = 16 * MIB
"""Bytes by which a process's resident memory may grow in the second half. Buffers still grow a little; a leak of some
KiB in each of 10,000 requests is more.
"""
SETTLE_SECONDS, PROBE_SECONDS = 60.0, 60.0
KEPT_FINDINGS, SHOWN_BYTES, ERROR_LINES = 50, 3000, 60
CHAT: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Say it."}]}
FORM: Mapping[str, Any] = {"regex": "[a-z]{4} [0-9]{4}"}
PROBES: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (GENERATOR, "/v1/completions", {"prompt": "Once", "max_tokens": 40, "temperature": 0, "ignore_eos": True}),
    (GENERATOR, "/v1/completions", {"prompt": [7] * 200, "max_tokens": 60, "temperature": 0, "logprobs": 3}),
    (GENERATOR, "/v1/chat/completions", {**CHAT, "max_tokens": 40, "temperature": 0, "ignore_eos": True}),
    (GENERATOR, "/v1/completions", {"prompt": "One", "max_tokens": 40, "temperature": 0, "structured_outputs": FORM}),
    (GENERATOR, "/v1/messages", {**CHAT, "max_tokens": 40, "temperature": 0}),
    (GENERATOR, "/v1/responses", {"input": "Say it.", "max_output_tokens": 40, "temperature": 0}),
    (EMBEDDER, "/v1/embeddings", {"input": ["Once", "upon a time"]}),
    (CLASSIFIER, "/v1/classify", {"input": ["Once", "upon a time"]}),
)
TOLD = ("choices", "content", "output", "data")
"""Fields of responses that contain computed output."""
ROUNDING = 1e-4
CHANGING = frozenset(("id", "created_at", "call_id"))
"""Fields that differ between responses."""


@dataclass(slots=True)
class Tally:
    """Results so far. `kinds`: number of responses by kind of request and status. `findings` has the first faults;
    `wrong` counts all of them.
    """

    sent: int = 0
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    slowest: float = 0.0
    wrong: int = 0
    findings: list[str] = field(default_factory=list)
    readings: dict[str, list[Reading]] = field(default_factory=dict)

    def complain(self, finding: str) -> None:
        """Record a fault."""
        self.wrong += 1
        if len(self.findings) < KEPT_FINDINGS:
            self.findings.append(finding)


class Fuzz:
    """A fixed number of users, who send requests of one supply one by one to running servers."""

    def __init__(self, servers: Mapping[str, ServerProcess], seed: int, patience: float, users: int) -> None:
        """A response that is unfinished after `patience` seconds is a fault."""
        self.tally = Tally()
        self._servers = servers
        self._patience = patience
        self._users = users
        with urllib.request.urlopen(f"{servers[GENERATOR].url}/openapi.json", timeout=PROBE_SECONDS) as response:
            document = json.load(response)
        self._known = Known()
        self._judge = Judge(document)
        self._supply = iter(Requests(document, seed, self._known))
        self._began = time.monotonic()

    async def run(self, count: int, minutes: float) -> None:
        """Send up to `count` requests in at most `minutes`, then check the servers' state."""
        end = time.monotonic() + minutes * 60
        before = [await self._probe(*probe) for probe in PROBES]
        warm = round(count * WARM_UP)
        await self._send(warm, count, end)
        idle = await self._settle(None)
        await self._send(count - warm, count, end)
        await self._settle(idle)
        if self.tally.sent < count:
            self.tally.complain(f"{self.tally.sent} of {count} requests were sent in {minutes:g} minutes")
        if not all(server.alive for server in self._servers.values()):
            return
        for (name, path, body), known in zip(PROBES, before, strict=True):
            if not alike(now := await self._probe(name, path, body), known):
                self.tally.complain(f"{path} {body}: {now} instead of {known}")
        if count >= FEWEST_JUDGED:
            self._judge_memory()

    async def _send(self, count: int, whole: int, end: float) -> None:
        numbers = iter(range(count))
        every = max(1, whole // READINGS)

        async def user() -> None:
            for _ in numbers:
                if time.monotonic() > end or not self._all_alive():
                    return
                await self._one(next(self._supply))
                if self.tally.sent % every == 0:
                    self._read()

        async with asyncio.TaskGroup() as group:
            for _ in range(self._users):
                group.create_task(user())

    def _all_alive(self) -> bool:
        return all(server.alive for server in self._servers.values())

    async def _one(self, asked: Fuzzed) -> None:
        began = time.monotonic()
        wrong: str | None
        try:
            answer = await send(self._servers[asked.server].url, asked, self._patience)
        except Hung as hung:
            told, wrong = "hung", str(hung)
        else:
            told, wrong = str(answer.status), self._judge.complaint(asked, answer)
            if answer.status == 200 and answer.media == "application/json" and answer.whole and asked.operation:
                self._known.learn(asked.operation[1], json.loads(answer.body))
        tally = self.tally
        tally.sent += 1
        tally.slowest = max(tally.slowest, time.monotonic() - began)
        tally.kinds.setdefault(asked.kind, Counter())[told] += 1
        if wrong is not None:
            shown = asked.data[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
            tally.complain(f"{asked.kind}, {asked.server}: {wrong}\n  after {shown!r}")

    async def _probe(self, server: str, path: str, body: Mapping[str, Any]) -> Any:
        """Return the computed output for a probe, without fields that differ each time; for another status than 200,
        the status and the body.
        """
        asked = Fuzzed("probe", server, request("POST", path, json.dumps({"model": MODEL, **body}).encode()))
        answer = await send(self._servers[server].url, asked, PROBE_SECONDS)
        if answer.status != 200:
            return answer.status, answer.body
        told = json.loads(answer.body)
        return [_lasting(told[name]) for name in TOLD if name in told]

    async def _settle(self, before: Mapping[str, Mapping[str, Footprint]] | None) -> dict[str, Mapping[str, Footprint]]:
        """Wait until no server holds resources of ended requests, and return the processes' footprints by server.
        Descriptors and threads beyond `before` (None: not compared) count as held. Record a fault for each resource
        that is still held after SETTLE_SECONDS, and for a server that has ended.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        found: dict[str, Mapping[str, Footprint]] = {}
        for name, server in self._servers.items():
            while server.alive:
                found[name] = server.footprints()
                threads = min(32, (os.cpu_count() or 1) + 4)
                held = verdict.of_idleness(server.metrics())
                held += verdict.of_handles(before[name], found[name], threads) if before else []
                if not held:
                    break
                if time.monotonic() > deadline:
                    for complaint in held:
                        self.tally.complain(f"{name}: {complaint}")
                    break
                await asyncio.sleep(0.25)
            else:
                self.tally.complain(f"{name} ended: {server.tail()}")
        return found

    def _judge_memory(self) -> None:
        for name, series in self.tally.readings.items():
            if (found := growth(series)).over_half > ALLOWED_GROWTH:
                most = f"more than {ALLOWED_GROWTH / MIB:g} MiB"
                self.tally.complain(f"{name}: grew by {found.over_half / MIB:.1f} MiB in the second half, {most}")

    def _read(self) -> None:
        now = round(time.monotonic() - self._began, 2)
        for name, server in self._servers.items():
            for process, footprint in server.footprints().items():
                self.tally.readings.setdefault(f"{name}'s {process}", []).append(Reading(now, footprint.resident))


def fuzz(folder: Path, *, count: int, seed: int, patience: float, users: int, minutes: float) -> Tally:
    """Start servers with models and files in `folder`, fuzz them, stop them, and check their exit codes and logs."""
    with running(folder) as servers:
        fuzzed = Fuzz(servers, seed, patience, users)
        asyncio.run(fuzzed.run(count, minutes))
        for name, server in servers.items():
            code, log = server.stop(), server.log.read_text(errors="replace")
            for complaint in verdict.of_end(code, log):
                fuzzed.tally.complain(f"{name}: {complaint}\n{first_error(log)}")
    return fuzzed.tally


def first_error(log: str) -> str:
    """Return the first error of a log with the lines that follow it; "" without an error."""
    lines = log.splitlines()
    where = next((i for i, line in enumerate(lines) if " ERROR " in line or line.startswith("Traceback")), len(lines))
    return "\n".join(lines[where : where + ERROR_LINES])


def summary(tally: Tally) -> str:
    """Return the results as lines for the terminal: requests by kind and status, memory, faults."""
    lines = [f"{tally.sent} requests, the slowest took {tally.slowest:.1f} s"]
    lines += [f"  {kind}: {_statuses(counts)}" for kind, counts in sorted(tally.kinds.items())]
    for name, readings in sorted(tally.readings.items()):
        sizes = f"{readings[0].resident / MIB:.0f} to {readings[-1].resident / MIB:.0f} MiB"
        late = f", {growth(readings).over_half / MIB:+.1f} MiB in the second half" if len(readings) >= FEWEST else ""
        lines.append(f"  {name}: {sizes}{late}")
    lines += [f"WRONG {finding}" for finding in tally.findings]
    return "\n".join([*lines, f"FAILED: {tally.wrong} findings" if tally.wrong else "passed"])


def report(tally: Tally, settings: Mapping[str, float]) -> dict[str, Any]:
    """Return the record for --json: provenance, settings, findings, statuses and memory."""
    memory = {
        name: [[reading.seconds, round(reading.resident / MIB, 1)] for reading in readings]
        for name, readings in sorted(tally.readings.items())
    }
    return {
        "run": provenance(),
        "settings": settings,
        "passed": not tally.wrong,
        "findings": tally.findings,
        "requests": tally.sent,
        "slowest_seconds": round(tally.slowest, 2),
        "statuses": {kind: dict(sorted(counts.items())) for kind, counts in sorted(tally.kinds.items())},
        "resident_mib": memory,
    }


def _statuses(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {status}" for status, count in sorted(counts.items()))


def alike(value: Any, other: Any) -> bool:
    """Return whether two outputs are equal. Floats may differ by ROUNDING: batching changes the order of sums."""
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=ROUNDING, abs_tol=ROUNDING)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(alike, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(alike(inner, other[key]) for key, inner in value.items())
    return bool(value == other)


def _lasting(value: Any) -> Any:
    if isinstance(value, list):
        return [_lasting(item) for item in value]
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in CHANGING}
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, print and write. Return 0 if everything holds, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated requests (default %(default)s)")
    parser.add_argument("--users", type=int, default=4, metavar="N", help="requests at a time (default %(default)s)")
    parser.add_argument(
        "--patience",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds after which a response counts as hung (default %(default)g)",
    )
    parser.add_argument("--minutes", type=float, default=30.0, metavar="M", help="at most (default %(default)g)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result, with hardware, versions, command")
    args = parser.parse_args(arguments)
    if args.requests < 10 or args.users < 1 or args.patience <= 0 or args.minutes <= 0:
        parser.error("--requests must be at least 10, --users at least 1, --patience and --minutes above 0")
    settings = {"count": args.requests, "seed": args.seed, "users": args.users}
    settings |= {"patience": args.patience, "minutes": args.minutes}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        tally = fuzz(Path(folder), **settings)
    print(summary(tally))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report(tally, settings), indent=2) + "\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
