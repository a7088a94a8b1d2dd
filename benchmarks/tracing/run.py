"""`python -m tracing.run`: W4 and D16 with all requests traced and JSON logs, in turns with neither; and the Python
calls of a step with traces off and on.

Both servers stay loaded; the idle one uses no CPU. The collector of the traces is a process of its own on this machine
that keeps nothing, so the figures include sending. `--only` takes workloads.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import question
from command import PLIMSOLL
from options import Options
from plimsoll_runtime.engine.step_tracing import StepTracing
from serving import models, quiet
from serving.http_load import HttpServer, free_port
from serving.models import Shape
from serving.systems.base import KV_TOKENS
from serving.workloads import workload
from step_calls.run import calls_of_a_step
from tables import Sheet

WORKLOADS = ("W4", "D16")
OFF, ON = "off", "on"
WARM_UP_SCALE = 0.1
EVERY = StepTracing(100, 0.0)
"""The server's default, but no slow steps: counting calls makes steps slow."""
START_SECONDS = 10.0


class _Server(HttpServer):
    def __init__(self, shape: Shape, threads: int, environment: Mapping[str, str], *options: str) -> None:
        kv = str(KV_TOKENS * shape.kv_bytes)
        command = [*PLIMSOLL, "serve", models.source(shape), "--name", self.model, "--dtype", "bfloat16"]
        command += ["--kv-memory", kv, "--max-model-len", "2048", "--threads", str(threads), *options]
        super().__init__(command, environment)


def measure(chosen: Options) -> dict[str, Any]:
    """Return output tokens per second and times to the first token of each workload, with traces off and on; their
    ratios, and those of the servers' CPU times, are medians over the rounds. `calls`: Python calls of a decode step of
    16 sequences.
    """
    names = [name for name in WORKLOADS if not chosen.only or name in chosen.only]
    calls = {OFF: calls_of_a_step(None), ON: calls_of_a_step(EVERY)}
    return {"calls": calls, "workloads": {name: _measured(name, chosen) for name in names}}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row per workload."""
    rows = [
        [
            name,
            f"{each['tokens_per_second'][OFF]:.0f}",
            f"{each['tokens_per_second'][ON]:.0f}",
            f"{each['throughput_ratio']:.3f}x",
            f"{each['ttft_p50_ms'][OFF]:.1f}",
            f"{each['ttft_p50_ms'][ON]:.1f}",
            f"{each['ttft_ratio']:.3f}x",
            f"{each['cpu_ratio']:.3f}x",
        ]
        for name, each in result["workloads"].items()
    ]
    calls = result["calls"]
    note = f"Python calls of a decode step of 16 sequences: {calls[OFF]:.1f} with traces off, {calls[ON]:.1f} with on."
    headings = ["workload", "tokens/s off", "on", "ratio", "TTFT p50 ms off", "on", "ratio", "CPU time"]
    return Sheet("All requests traced and JSON logs, against neither: medians", headings, rows, note)


def _measured(name: str, chosen: Options) -> dict[str, Any]:
    shape = workload(name, chosen.scale, 1).shape
    with ExitStack() as stack:
        endpoint = stack.enter_context(_collector())
        traced = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_TRACES_SAMPLER": "parentbased_always_on",
            "PLIMSOLL_TRACES_PER_SECOND": "100000",
        }
        servers = {
            OFF: stack.enter_context(closing(_Server(shape, chosen.threads, {}))),
            ON: stack.enter_context(closing(_Server(shape, chosen.threads, traced, "--log-format", "json"))),
        }
        for server in servers.values():
            server.run(workload(name, min(chosen.scale, WARM_UP_SCALE), 0))
        rounds = [_round(name, number, servers, chosen) for number in range(1, chosen.rounds + 1)]
        with urlopen(endpoint) as answer:
            sent = int(answer.read())
    if not sent:
        raise RuntimeError("no traces were sent; the figures say nothing")
    return _summary(rounds, workload(name, chosen.scale, 1).output_tokens)


def _round(name: str, number: int, servers: Mapping[str, HttpServer], chosen: Options) -> dict[str, Any]:
    busy = quiet.cores_in_use()
    turn = (OFF, ON) if number % 2 else (ON, OFF)
    found: dict[str, Any] = {}
    for which in turn:
        before = servers[which].cpu_seconds
        found[which] = servers[which].run(workload(name, chosen.scale, number))
        found[which]["cpu_seconds"] = round(servers[which].cpu_seconds - before, 2)
    return {**found, "cores_used_by_others": round(busy, 2)}


def _summary(rounds: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    def median(of: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(map(of, rounds))

    return {
        "tokens_per_second": {w: median(partial(_speed, w, tokens)) for w in (OFF, ON)},
        "throughput_ratio": median(lambda r: r[OFF]["seconds"] / r[ON]["seconds"]),
        "ttft_p50_ms": {w: median(partial(_first_token, w)) for w in (OFF, ON)},
        "ttft_ratio": median(lambda r: r[ON]["ttft_ms"]["p50"] / r[OFF]["ttft_ms"]["p50"]),
        "cpu_ratio": median(lambda r: r[ON]["cpu_seconds"] / r[OFF]["cpu_seconds"]),
        "rounds": rounds,
    }


def _speed(which: str, tokens: int, of_round: dict[str, Any]) -> float:
    return float(tokens / of_round[which]["seconds"])


def _first_token(which: str, of_round: dict[str, Any]) -> float:
    return float(of_round[which]["ttft_ms"]["p50"])


@contextmanager
def _collector() -> Iterator[str]:
    """Run a collector; yield its endpoint."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "tracing.collector", str(port)])
    endpoint, end = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    try:
        for _ in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
            try:
                urlopen(endpoint).close()
                break
            except URLError:
                time.sleep(0.05)
        yield endpoint
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
