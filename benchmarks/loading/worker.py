"""`python -m loading.worker MODEL`: loads one model in a new process and prints its memory as JSON.

Resident memory includes anonymous pages and pages of mapped files, also of libraries. `base` is the process's memory
before it opened the model's files. With `--again`, the second load of the process counts: by then the libraries' pages
are present, unless the kernel has reclaimed some.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
import time
from functools import partial
from pathlib import Path

import torch

import plimsoll_runtime.models.cpu_executor.decoder
import plimsoll_runtime.weights.gguf.tensors
import plimsoll_runtime.weights.safetensors  # noqa: F401 - what a load imports is no part of what it takes
from offline.memory import forget_peak, peak_bytes
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.selection import select
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

STATUS = Path("/proc/self/status")
CPU = torch.device("cpu")
BLOCK_SIZE = 16


def main() -> int:
    """Load, and print one line of JSON: sizes in bytes, and seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    files = resolve(args.model)
    program, dtype = program_of(describe(files.config)), getattr(torch, args.dtype)
    backend = select(args.backend, Target(CPU, dtype, program.facts.attention, BLOCK_SIZE))
    load = partial(load_decoder, files, program, dtype, device=CPU, fused=backend.fused)
    if args.again:
        load()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    base = resident()
    forget_peak()
    start = time.perf_counter()
    decoder = load()
    seconds = time.perf_counter() - start
    peak = peak_bytes()
    gc.collect()
    kept = resident()
    answer = {"weights": decoder.weight_bytes, "base": base["VmRSS"], "peak": peak, "seconds": round(seconds, 3)}
    grown = {name: kept[row] - base[row] for name, row in (("files_mapped", "RssFile"), ("anonymous", "RssAnon"))}
    print(json.dumps({**answer, "final": kept["VmRSS"], **grown}))
    return 0


def resident() -> dict[str, int]:
    """Return the resident bytes by their names in /proc: VmRSS (all), RssAnon, RssFile, RssShmem."""
    rows = (line.split() for line in STATUS.read_text().splitlines())
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows if row[0].startswith(("VmRSS", "Rss"))}


if __name__ == "__main__":
    sys.exit(main())
