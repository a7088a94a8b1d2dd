"""`python -m groups.pipeline`: W2 on two stages, and on two stages of two ranks each, compared with one process.

Each system is an engine of its own, and they take turns in each round. All have the threads of `--threads` together.
Idle: the part of the elapsed time in which the busiest process of the group uses no processor time, so that a stage
with fewer layers than another does not count as idle.
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import psutil

import question
from options import Options
from plimsoll_runtime import LLM, SamplingParams
from serving import models
from serving.workloads import workload
from tables import Sheet

SYSTEMS: dict[str, dict[str, Any]] = {
    "one process": {},
    "2 stages": {"pipeline_parallel": 2},
    "2 ranks": {"tensor_parallel": 2},
    "2 stages of 2 ranks": {"pipeline_parallel": 2, "tensor_parallel": 2},
}
RANK = "plimsoll-rank"


def measure(chosen: Options) -> dict[str, Any]:
    """Return tokens per second and idle time of each system: medians over rounds."""
    models.source(models.SMALL)
    spawned = get_context("spawn")
    rounds: list[dict[str, tuple[float, float]]] = []
    tokens = workload("W2", chosen.scale, 1).output_tokens
    with ExitStack() as stack:
        pipes: dict[str, Connection] = {}
        for name, options in SYSTEMS.items():
            ours, theirs = spawned.Pipe()
            process = spawned.Process(target=_serve, args=(options, chosen, theirs))
            process.start()
            stack.callback(process.join)
            stack.callback(ours.send, None)
            pipes[name] = ours
            ours.recv()
        for number in range(chosen.rounds + 1):
            found = {}
            for name, pipe in pipes.items():
                pipe.send(number)
                found[name] = pipe.recv()
            if number:
                rounds.append(found)
    return {
        "model": models.SMALL.name,
        "tokens": tokens,
        "systems": {name: _medians(name, rounds, tokens) for name in SYSTEMS},
    }


def _medians(name: str, rounds: list[dict[str, tuple[float, float]]], tokens: int) -> dict[str, float]:
    first = next(iter(SYSTEMS))
    return {
        "tokens_per_second": round(tokens / statistics.median(each[name][0] for each in rounds), 1),
        "speed_of_one": round(statistics.median(each[first][0] / each[name][0] for each in rounds), 3),
        "idle": round(statistics.median(each[name][1] for each in rounds), 3),
    }


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each system."""
    rows = [
        [name, f"{found['tokens_per_second']:.0f}", f"{found['speed_of_one']:.3f}", f"{found['idle']:.1%}"]
        for name, found in result["systems"].items()
    ]
    headings = ["system", "tokens/s", "of one process", "idle"]
    return Sheet(f'W2 on "{result["model"]}" in bfloat16, medians', headings, rows)


def _serve(options: dict[str, Any], chosen: Options, pipe: Connection) -> None:
    """Generate W2 with the tokens of each round that the pipe names; answer with the seconds, and the idle part."""
    with LLM(
        models.source(models.SMALL),
        dtype="bfloat16",
        threads=chosen.threads,
        max_sequences=64,
        max_model_len=1024,
        kv_memory="1GiB",
        **options,
    ) as llm:
        pipe.send("ready")
        while (number := pipe.recv()) is not None:
            work = workload("W2", chosen.scale, number)
            params = [
                SamplingParams(temperature=0.0, max_tokens=each.output_len, ignore_eos=True) for each in work.requests
            ]
            before, began = _busy(), time.perf_counter()
            llm.generate([list(each.prompt) for each in work.requests], params)
            seconds = time.perf_counter() - began
            busiest = max(after - at for after, at in zip(_busy(), before, strict=True))
            pipe.send((seconds, max(0.0, 1 - busiest / seconds)))


def _busy() -> list[float]:
    """Return the processor time of each rank, or of this process if it computes alone."""
    own = psutil.Process()
    ranks = [child for child in own.children(recursive=True) if child.name().startswith(RANK)]
    times = [each.cpu_times() for each in ranks or [own]]
    return [each.user + each.system for each in times]


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
