"""`python -m loading.run`: peak memory of a load over the memory it keeps, by weight format.

Each load runs as a separate process, whose high-water mark of resident memory counts, including mapped files. `ratio`
is peak over final memory of the whole process; `of_weights` subtracts the process's memory before the load, which could
otherwise hide the peak.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import question
from options import Options
from peers import gguf_files
from serving import models
from tables import Sheet

HERE = Path(__file__).resolve().parent.parent
MIB = 2**20
SHARD = "64MB"


def measure(chosen: Options) -> dict[str, Any]:
    """Measure every case, and return the worst ratio too."""
    wanted = {name: make for name, make in CASES.items() if not chosen.only or name in chosen.only}
    cases = [_case(name, make(), chosen) for name, make in wanted.items()]
    return {"worst": max(case["ratio"] for case in cases), "cases": cases}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row per case."""
    rows = [
        [
            case["name"],
            *(f"{case[key] / MIB:.0f}" for key in ("weights", "base", "peak", "final")),
            *(f"{case[key]:.3f}" for key in ("ratio", "of_weights")),
            f"{case['seconds']:.2f}",
        ]
        for case in result["cases"]
    ]
    headings = ["weights", "MiB", "before", "peak", "after", "peak / after", "of the load alone", "seconds"]
    return Sheet("Resident memory around a load, MiB; the worst round of each", headings, rows)


def _case(name: str, model: str, chosen: Options) -> dict[str, Any]:
    rounds = [load(model, chosen.threads) for _ in range(chosen.rounds)]
    worst = max(rounds, key=lambda r: r["peak"] / r["final"])
    seconds = statistics.median(r["seconds"] for r in rounds)
    return {
        "name": name,
        **worst,
        "seconds": seconds,
        "ratio": round(worst["peak"] / worst["final"], 4),
        "of_weights": round((worst["peak"] - worst["base"]) / (worst["final"] - worst["base"]), 4),
    }


def load(model: str, threads: int, *more: str) -> dict[str, Any]:
    """Load once in a new process, and return the figures that `loading.worker` prints. Raises CalledProcessError on
    failure.
    """
    command = [sys.executable, "-m", "loading.worker", model, "--threads", str(threads), *more]
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _sharded() -> str:
    """Return the folder of "small" split into several safetensors files, and create it if missing."""
    whole = models.folder(models.SMALL)
    target = whole.with_name(f"{whole.name}-shards")
    if not (target / "model.safetensors.index.json").is_file():
        import transformers

        auto: Any = transformers.AutoModelForCausalLM
        auto.from_pretrained(whole).save_pretrained(target, max_shard_size=SHARD)
    return str(target)


CASES: Mapping[str, Callable[[], str]] = {
    "small, safetensors": lambda: models.source(models.SMALL),
    "small, shards": _sharded,
    "small, GGUF BF16": lambda: str(gguf_files.from_safetensors(models.folder(models.SMALL), "BF16")),
    "medium, safetensors": lambda: models.source(models.MEDIUM),
    "demo, GGUF Q4_K_M": lambda: models.source(models.DEMO),
}


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
