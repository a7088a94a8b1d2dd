"""Observes a server whose model is divided among ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import psutil
from server_support.process import Served

CHECKED = ("--dtype", "float32", "--check-integrity-every", "1", "--check-collectives")
OPTIONS = (*CHECKED, "--tensor-parallel", "2")
STAGED = (*CHECKED, "--pipeline-parallel", "2")
BOTH = (*CHECKED, "--tensor-parallel", "2", "--pipeline-parallel", "2")
SECONDS = 60.0


def children_of(server: Served) -> dict[str, psutil.Process]:
    """Return the ranks and the fork server, by name."""
    found = {}
    for child in server.engine().children():
        with suppress(psutil.NoSuchProcess):  # it ended since it was listed
            found[child.name()] = child
    return found


def ranks_of(server: Served) -> dict[str, psutil.Process]:
    return {name: child for name, child in children_of(server).items() if name.startswith("plimsoll-rank")}


def until(condition: Callable[[], bool], seconds: float = SECONDS) -> float:
    """Poll a condition; return the seconds until it was true."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds
        time.sleep(0.01)
    return time.monotonic() - began


def health(server: Served) -> int:
    return httpx.get(f"{server.url}/health", timeout=10).status_code


def text(server: Served, prompt: list[int], tokens: int, seed: int) -> str:
    body: dict[str, Any] = {
        **{"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": seed, "stream": True},
        **{"temperature": 0.9},
    }
    pieces = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                pieces.append(httpx.Response(200, content=line.removeprefix("data: ")).json()["choices"][0]["text"])
    assert line == "data: [DONE]" or not line
    return "".join(pieces)


def metrics_of(server: Served) -> dict[str, float]:
    """Return the values of all samples, by name with labels."""
    samples = [line.rpartition(" ") for line in server.metrics() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def steps_of(server: Served) -> float:
    found = [line for line in server.metrics() if line.startswith("plimsoll_engine_steps_total")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0
