"""`python -m startup.run`: time from the start of `plimsoll serve` to the first token of "medium", including imports.

A first start, which does not count, brings the files into the page cache, like on a machine that served the model
before.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import question
from command import PLIMSOLL
from options import Options
from serving import models, quiet
from serving.http_load import free_port
from startup.ready import wait_ready
from tables import Sheet

LIMIT_SECONDS = 120
PROMPT = list(range(300, 332))


def measure(chosen: Options) -> dict[str, Any]:
    """Return seconds until the server is ready and until its first token: medians, and each round."""
    model = models.source(models.MEDIUM)
    _start(model, chosen.threads)
    rounds = []
    for _ in range(chosen.rounds):
        busy = quiet.cores_in_use()
        rounds.append({**_start(model, chosen.threads), "cores_used_by_others": round(busy, 2)})
    medians = {name: statistics.median(r[name] for r in rounds) for name in ("ready_seconds", "first_token_seconds")}
    return {**medians, "rounds": rounds}


def table(result: dict[str, Any]) -> Sheet:
    """Return a table with one row."""
    row = ["medium", f"{result['ready_seconds']:.2f}", f"{result['first_token_seconds']:.2f}"]
    return Sheet("Seconds from the start of a server, median", ["model", "ready", "first token"], [row])


def _start(model: str, threads: int) -> dict[str, float]:
    """Start a server, request one token, and end the server. Return its seconds until ready and until the token."""
    port = free_port()
    command = [*PLIMSOLL, "serve", model, "--name", "medium", "--port", str(port), "--threads", str(threads)]
    command += ["--dtype", "bfloat16", "--kv-memory", "512MiB", "--max-model-len", "2048"]
    with tempfile.TemporaryFile("w+") as log:
        start = time.perf_counter()
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                wait_ready(process, port, LIMIT_SECONDS)
                ready = time.perf_counter() - start
                _first_token(port)
                return {"ready_seconds": ready, "first_token_seconds": time.perf_counter() - start}
            except (RuntimeError, TimeoutError):
                log.seek(0)
                print(log.read()[-3000:], file=sys.stderr)
                raise
            finally:
                process.terminate()


def _first_token(port: int) -> None:
    """Request one token and return when it has arrived. Raises RuntimeError if none arrives."""
    body = {"model": "medium", "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(b"data: {") and json.loads(line.removeprefix(b"data: ")).get("choices"):
            connection.close()
            return
    raise RuntimeError(f"no token came, status {response.status}")


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
