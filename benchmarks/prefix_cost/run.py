"""`python -m prefix_cost.run`: 64 mixed requests without common prefixes, with the prefix cache on and off.

Two engines in one process; each round runs on, off, off, on, so that a machine that slows down favours neither.
Measuring starts after a background thread of each engine has touched all pages of its KV cache. Otherwise only the
engine with the prefix cache would pay for new pages: it uses new blocks in each turn until all have been used, the
other one always uses the same blocks.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from typing import Any

import question
from options import Options
from plimsoll_kernels.cpu.huge_pages import POPULATE
from plimsoll_runtime import LLM, SamplingParams
from serving import models, quiet
from serving.systems.base import KV_TOKENS
from serving.workloads import Workload, workload
from tables import Sheet

TURNS = (True, False, False, True)


def measure(chosen: Options) -> dict[str, Any]:
    """Return by what share W2 takes longer with the prefix cache than without, median of rounds."""
    engines = {caching: _load(chosen.threads, caching) for caching in (True, False)}
    _wait_for_pages()
    for llm in engines.values():
        _seconds(llm, workload("W2", min(chosen.scale, 0.1), 0))
    rounds = []
    for number in range(1, chosen.rounds + 1):
        busy, seconds = quiet.cores_in_use(), {True: 0.0, False: 0.0}
        for turn, caching in enumerate(TURNS):
            # New tokens each time, else the cache would contain those of the previous turn.
            seconds[caching] += _seconds(engines[caching], workload("W2", chosen.scale, len(TURNS) * number + turn))
        cost = seconds[True] / seconds[False] - 1
        rounds.append(
            {"on": seconds[True], "off": seconds[False], "cost": cost, "cores_used_by_others": round(busy, 2)}
        )
    stats = engines[True].stats
    if stats.cache_hit_tokens:
        raise RuntimeError(
            f"{stats.cache_hit_tokens} prompt tokens hit the prefix cache; this benchmark needs prompts without hits"
        )
    return {"cost": statistics.median(float(r["cost"]) for r in rounds), "rounds": rounds}


def table(result: dict[str, Any]) -> Sheet:
    """Return a table with one row."""
    seconds = [statistics.median(r[name] for r in result["rounds"]) / 2 for name in ("on", "off")]
    row = ["W2", *(f"{s:.2f}" for s in seconds), f"{result['cost']:+.2%}"]
    return Sheet("Prefix caching when nothing is shared", ["requests", "on, s", "off, s", "cost"], [row])


def _load(threads: int, caching: bool) -> LLM:
    kv = str(KV_TOKENS * models.SMALL.kv_bytes)
    return LLM(
        models.source(models.SMALL),
        dtype="bfloat16",
        threads=threads,
        kv_memory=kv,
        max_model_len=2048,
        prefix_caching=caching,
    )


def _wait_for_pages() -> None:
    for thread in threading.enumerate():
        if thread.name == POPULATE:
            thread.join()


def _seconds(llm: LLM, work: Workload) -> float:
    params = [SamplingParams(temperature=0.0, max_tokens=r.output_len, ignore_eos=True) for r in work.requests]
    start = time.perf_counter()
    llm.generate([list(r.prompt) for r in work.requests], params)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
