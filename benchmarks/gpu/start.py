"""Time from the start of `plimsoll serve` to the first output over HTTP, including the capture of graphs: with empty
caches, and with the caches that the first start has filled.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from command import PLIMSOLL
from peers import places
from serving.http_load import free_port
from startup.ready import wait_ready

LIMIT_SECONDS = 180.0
PROMPT = list(range(3, 35))
TOKENS = 4
"""Tokens of the output, so that it includes the first decodes with their graphs."""


def measure(model: str, rounds: int, *options: str) -> dict[str, Any]:
    """Measure a first start, which compiles and tunes everything, and medians of later ones, which use its caches.
    Raises RuntimeError with the end of the log if a server does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="plimsoll-start-") as folder:
        first = start(model, Path(folder), *options)
        later = [start(model, Path(folder), *options) for _ in range(rounds)]
    names = ("ready_seconds", "first_token_seconds", "answer_seconds")
    return {
        **{f"cold_{name}": round(first[name], 3) for name in names},
        **{name: round(statistics.median(each[name] for each in later), 3) for name in names},
    }


def start(model: str, caches: Path, *options: str) -> dict[str, float]:
    """Return seconds until a server is ready, until the first token of its first output, and until its last."""
    port = free_port()
    command = [*PLIMSOLL, "serve", model, "--name", "bench", "--port", str(port), *options]
    environment = {
        **os.environ,
        "PLIMSOLL_CACHE": str(caches / "plimsoll"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "PLIMSOLL_PEERS": str(places.home()),
    }
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
            try:
                wait_ready(process, port, LIMIT_SECONDS)
                ready = time.perf_counter() - began
                first = _answer(port) - began
                return {
                    "ready_seconds": ready,
                    "first_token_seconds": first,
                    "answer_seconds": time.perf_counter() - began,
                }
            except (RuntimeError, OSError) as error:
                log.seek(0)
                raise RuntimeError(f"{error}: {log.read()[-3000:]}") from error
            finally:
                process.terminate()


def _answer(port: int) -> float:
    """Request an output, read it to the end, and return the time (`perf_counter`) at which its first token arrived."""
    body = {"model": "bench", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(
        "POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    first = 0.0
    while line := response.readline():
        if line.startswith(b"data: {") and json.loads(line.removeprefix(b"data: ")).get("choices"):
            first = first or time.perf_counter()
    connection.close()
    if not first:
        raise RuntimeError(f"no token came, status {response.status}")
    return first
