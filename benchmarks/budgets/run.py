"""`python -m budgets.run`: requests that three gateways on loopback admit of a key's limit, under uneven, moving load.

Each load sends twice the limit for `--seconds`, distributed differently over the gateways. The result also has the most
requests that were admitted in any 60 seconds. Then streams are started until all gateways refuse more, half of them at
one gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from budgets import started
from gateway.started import replicas, table
from provenance import provenance

LIMIT, STREAMS = 600, 30
LOADS = ((1.0, 1.0, 1.0), (16.0, 3.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 4.0))
OVERLOAD = 2.0


def main() -> int:
    """Measure, print, and write the result to the requested file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    chosen = parser.parse_args()
    with _folder() as folder, replicas(sorted(os.sched_getaffinity(0))[0]) as ports:
        (folder / "table.json").write_text(table(ports))
        keys = started.make_keys(folder, LIMIT, STREAMS)
        with started.running(folder) as gateways:
            result = asyncio.run(_measure(gateways, keys, chosen.seconds))
    print(json.dumps(result, indent=2))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"run": provenance(), **result}, indent=2) + "\n")
    return 0


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


async def _measure(gateways: list[str], keys: dict[str, str], seconds: float) -> dict[str, Any]:
    times: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        loads = [await _offer(client, gateways, keys["rate"], load, seconds, times) for load in LOADS]
        streams = await _streams(client, gateways, keys["streams"])
    return {
        "limit": LIMIT,
        "seconds": seconds,
        "load_average": os.getloadavg(),
        "loads": loads,
        "most_in_any_minute": max(sum(at <= t < at + 60 for t in times) for at in times),
        "streams": {"limit": STREAMS, "under_way": streams},
    }


async def _offer(
    client: aiohttp.ClientSession,
    gateways: list[str],
    key: str,
    load: tuple[float, ...],
    seconds: float,
    times: list[float],
) -> dict[str, Any]:
    """Send requests at random times, distributed over the gateways by the weights in `load`. Return the numbers of sent
    and admitted requests, and append the times at which the admitted ones were sent to `times`. A request counts in the
    load in which it was sent, whenever its response arrives.
    """
    rng, rate, answers = random.Random(5), OVERLOAD * LIMIT / 60, []
    began = due = time.monotonic()
    while (due := due + rng.expovariate(rate)) < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        at = rng.choices(range(len(gateways)), load)[0]
        answers.append(asyncio.create_task(_ask(client, gateways[at], key)))
    statuses = [await answer for answer in answers]
    let_in = [at for at, status in statuses if status == 200]
    times += let_in
    return {
        "load": load,
        "asked": len(statuses),
        "let_in": len(let_in),
        "of_limit": round(len(let_in) / (LIMIT * seconds / 60), 4),
        "other_statuses": sorted({status for _, status in statuses} - {200, 429}),
    }


async def _ask(client: aiohttp.ClientSession, gateway: str, key: str) -> tuple[float, int]:
    sent = time.monotonic()
    headers = {"authorization": f"Bearer {key}"}
    async with client.post(f"{gateway}/v1/completions", json={"model": "m"}, headers=headers) as response:
        await response.read()
        return sent, response.status


async def _streams(client: aiohttp.ClientSession, gateways: list[str], key: str) -> int:
    """Start streams until all gateways have refused more for ten seconds, and return how many are open then."""
    held: list[aiohttp.ClientResponse] = []
    headers, quiet = {"authorization": f"Bearer {key}"}, time.monotonic()
    while time.monotonic() - quiet < 10:
        for gateway in (gateways[0], gateways[0], *gateways[1:]):
            body = {"model": "m", "stream": True}
            response = await client.post(f"{gateway}/v1/completions", json=body, headers=headers)
            if response.status == 200:
                held.append(response)
                quiet = time.monotonic()
            else:
                response.close()
        await asyncio.sleep(0.1)
    for response in held:
        response.close()
    return len(held)


if __name__ == "__main__":
    sys.exit(main())
