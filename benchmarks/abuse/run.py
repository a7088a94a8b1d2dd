"""`python -m abuse.run`: latency of small requests through a gateway under abuse, with its chart's memory limit.

Before and during the abuse, small requests arrive at a steady rate, each on its own connection, for a replica that
answers immediately. The abuse comes from another process without pause: bodies that are expensive to parse, aborted
streams with large prompts, a thousand unfinished requests. 2,000 idle streams stay open.
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
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from abuse import gateway
from abuse.clients import ask, begin
from abuse.group import memory_group
from abuse.limits import chart_limit
from provenance import provenance

GOAL_MS = 100.0
STREAMS = 2000
OPENED_ABREAST = 50
SMALL = b'{"model": "ok", "prompt": "Hi"}'


def main() -> int:
    """Measure and print. Return 0 if the kernel killed nothing and every small request got status 200, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase (%(default)s)")
    parser.add_argument("--rate", type=float, default=50.0, help="small requests per second (%(default)s)")
    parser.add_argument("--port", type=int, default=18080, help="of the gateway (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    chosen = parser.parse_args()
    gateway.raise_open_files()
    result = asyncio.run(_measure(chosen.port, chosen.seconds, chosen.rate))
    print(json.dumps({key: value for key, value in result.items() if key != "run"}, indent=2))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(result, indent=2) + "\n")
    answered = all(set(result[phase]["statuses"]) == {"200"} for phase in ("quiet", "abused"))
    return 0 if answered and result["kills"] == 0 else 1


async def _measure(port: int, seconds: float, rate: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, memory_group(chart_limit("gateway")) as group:
        async with _backend() as ports, gateway.running(group, ports, Path(folder), port):
            streams = []
            for _ in range(STREAMS // OPENED_ABREAST):
                calls = (begin(port, b'{"model": "stream"}') for _ in range(OPENED_ABREAST))
                streams += await asyncio.gather(*calls)
            quiet = await _small_requests(port, seconds, rate)
            attacker = await asyncio.create_subprocess_exec(sys.executable, "-m", "abuse.attack", str(port))
            abused = await _small_requests(port, seconds, rate)
            still_attacked = attacker.returncode is None
            attacker.kill()
            await attacker.wait()
            open_streams = sum(not stream.reader.at_eof() for stream in streams)
            for stream in streams:
                stream.close()
        peak, kills = group.peak, group.kills
    return {
        "run": provenance(),
        "load_average": [round(each, 1) for each in os.getloadavg()],
        "limit_mib": chart_limit("gateway") / 2**20,
        "peak_mib": round(peak / 2**20, 1),
        "kills": kills,
        "idle_streams": open_streams,
        "attacked_to_the_end": still_attacked,
        "goal_p99_ms": GOAL_MS,
        "quiet": quiet,
        "abused": abused,
    }


@contextlib.asynccontextmanager
async def _backend() -> AsyncIterator[dict[str, int]]:
    """Start the replicas in a separate process, so that their work on the attacker's bodies is not measured. Yield
    their ports by model.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "abuse.backend", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        process.kill()
        await process.communicate()


async def _small_requests(port: int, seconds: float, rate: float) -> dict[str, Any]:
    """Send `rate` small requests a second for `seconds`, each at its time, whether or not the previous one has ended.
    Return their number by status, and percentiles of their milliseconds.
    """
    taken: list[float] = []
    statuses: Counter[str] = Counter()

    async def one() -> None:
        began = time.perf_counter()
        statuses[str(await ask(port, SMALL))] += 1
        taken.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            tasks.create_task(one())
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return {
        "requests": len(taken),
        "statuses": dict(statuses),
        "p50_ms": round(cuts[49], 2),
        "p90_ms": round(cuts[89], 2),
        "p99_ms": round(cuts[98], 2),
        "max_ms": round(max(taken), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
