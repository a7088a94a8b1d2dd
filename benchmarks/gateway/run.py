"""`python -m gateway.run`: latency that the gateway adds to a request, on one core, with replicas that answer
immediately: with keys, fair queue and prefixes, without keys, and for a minimal relay.

Each round measures the replicas directly and then each kind of gateway in turn, so that other load on the machine
affects all of them. "Added" is the percentile through a gateway minus that of the replicas in the same round, median of
rounds. The CPU time of a request is meaningful on a busy machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from gateway import load, started
from gateway.started import Gateway, Kind
from provenance import provenance

GOALS = {"p50_ms": 0.5, "p99_ms": 3.0, "idle_mib": 300.0}
KEYS = 20
STREAMS = 2000
OPENED_ABREAST = 50


def main() -> int:
    """Measure, print, and write the result to the requested file. Return 1 if a request failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each kind in each round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="medians are reported (%(default)s)")
    parser.add_argument("--port", type=int, default=18200, help="of the first gateway (%(default)s)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="sources of another version, with keys")
    parser.add_argument(
        "--python", metavar="FILE", help="also measure another interpreter, which must find these sources"
    )
    parser.add_argument("--parts", action="store_true", help="also measure another HTTP parser")
    parser.add_argument("--uvloop", action="store_true", help="also measure uvloop, which must be installed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    chosen = parser.parse_args()
    result = asyncio.run(_measure(chosen))
    print(json.dumps(result["kinds"], indent=2))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"run": provenance(), **result}, indent=2) + "\n")
    return 0 if all(kind["failures"] == 0 for kind in result["kinds"].values()) else 1


def _kinds(chosen: argparse.Namespace) -> list[Kind]:
    kinds = [Kind("with keys", keyed=True), Kind("without keys", keyed=False)]
    kinds.append(Kind("the least relay", keyed=False, floor="asyncio"))
    if chosen.uvloop:
        kinds.append(Kind("with keys, uvloop", keyed=True, parts=("uvloop",)))
        kinds.append(Kind("the least relay, uvloop", keyed=False, floor="uvloop"))
    if chosen.parts:
        kinds.append(Kind("with keys, h11", keyed=True, parts=("h11",)))
    if chosen.python is not None:
        kinds.append(Kind(f"with keys, {started.version_of(chosen.python)}", keyed=True, python=chosen.python))
    if chosen.against is not None:
        kinds.append(Kind("the other version", keyed=True, source=chosen.against))
    return kinds


async def _measure(chosen: argparse.Namespace) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = stack.enter_context(started.replicas(cores[0]))
        (folder / "table.json").write_text(started.table(ports))
        (folder / "token").write_text("a-credential-for-the-replicas\n")
        headers = started.make_keys(folder / "keys", KEYS)
        gateways = [
            stack.enter_context(started.running(kind, folder, chosen.port + number, cores[-1], ports))
            for number, kind in enumerate(_kinds(chosen))
        ]
        count = int(chosen.rate * chosen.seconds)
        rounds = []
        for number in range(chosen.rounds + 1):  # the first round warms up
            turn = number % len(gateways)  # other processes may just have used the core
            ordered = [*gateways[turn:], *gateways[:turn]]
            found = await _round(ordered, ports[0], chosen.rate, load.requests(count, headers))
            if number:
                rounds.append(found)
        idle = await _idle(gateways[0], headers[0])
    return {
        "rate": chosen.rate,
        "seconds": chosen.seconds,
        "keys": KEYS,
        "replicas": started.REPLICAS,
        "load_average": os.getloadavg(),
        "goals": GOALS,
        "kinds": _summary(rounds),
        "idle_streams": STREAMS,
        "idle_mib": round(idle, 1),
        "rounds": rounds,
    }


async def _round(gateways: list[Gateway], direct: int, rate: float, wanted: list[bytes]) -> dict[str, Any]:
    base = _percentiles((await load.steady(direct, rate, wanted))[0])
    found: dict[str, Any] = {"replicas themselves": base}
    for gateway in gateways:
        before = gateway.cpu_seconds()
        seconds, failures = await load.steady(gateway.port, rate, wanted)
        cpu = (gateway.cpu_seconds() - before) / len(wanted)
        through = _percentiles(seconds)
        found[gateway.kind.name] = {
            "added_p50_ms": through["p50_ms"] - base["p50_ms"],
            "added_p99_ms": through["p99_ms"] - base["p99_ms"],
            "cpu_ms": 1000 * cpu,
            "failures": failures,
        }
    return found


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return for each kind of gateway the medians over the rounds of the added latency, of the CPU time, and of its
    ratio to the CPU time of the gateway with keys in the same round; and the number of failed requests.
    """
    names = [name for name in rounds[0] if name != "replicas themselves"]
    first = "with keys"
    summary: dict[str, Any] = {}
    for name in names:
        figures = ("added_p50_ms", "added_p99_ms", "cpu_ms")
        summary[name] = {
            **{figure: round(statistics.median(r[name][figure] for r in rounds), 3) for figure in figures},
            "cpu_ratio": round(statistics.median(r[name]["cpu_ms"] / r[first]["cpu_ms"] for r in rounds), 3),
            "failures": sum(r[name]["failures"] for r in rounds),
        }
    return summary


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * one for one in seconds)
    return {"p50_ms": ordered[len(ordered) // 2], "p99_ms": ordered[len(ordered) * 99 // 100]}


async def _idle(gateway: Gateway, header: bytes) -> float:
    """Return the resident memory, in MiB, of a gateway with STREAMS idle streams."""
    body = b'{"model": "m", "stream": true}'
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%scontent-length: %d\r\n\r\n%s" % (header, len(body), body)
    writers = []
    for _ in range(STREAMS // OPENED_ABREAST):
        opened = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(OPENED_ABREAST))
        )
        for _, writer in opened:
            writer.write(request)
        for reader, _ in opened:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            await reader.readuntil(b"data: {}\n\n")
        writers += [writer for _, writer in opened]
    taken = gateway.resident_mib()
    for writer in writers:
        writer.transport.abort()
    return taken


if __name__ == "__main__":
    sys.exit(main())
