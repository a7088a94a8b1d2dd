"""Runs `plimsoll batch` like a user, and measures its time and memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from offline import memory
from serving.models import Shape
from serving.systems.base import KV_TOKENS
from serving.systems.plimsoll import MAX_LEN
from serving.workloads import Request

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Ran:
    """`seconds` from the first row to the last result, without the load; `peak_bytes` of resident memory."""

    rows: int
    seconds: float
    peak_bytes: int


def run_batch(
    shape: Shape,
    model: str,
    threads: int,
    requests: Iterable[Request],
    look: Callable[[int], None] = lambda process: None,
) -> Ran:
    """Run `plimsoll batch` over the requests, each a line of JSON with token ids. `look` gets the process's id every
    `LOOK_SECONDS`.
    """
    program = Path(sys.executable).parent / "plimsoll"
    options = ["--dtype", "bfloat16", "--kv-memory", str(KV_TOKENS * shape.kv_bytes), "--max-model-len", str(MAX_LEN)]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        given, output = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        with given.open("w") as file:
            for request in requests:
                print(_line(request), file=file)
        command = [program, "batch", given, output, "--model", model, "--threads", str(threads), *options]
        with subprocess.Popen([str(word) for word in command], stdout=log, stderr=log) as process:
            peak = _watched(process, look)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"plimsoll batch ended with {process.returncode}: {log.read()[-2000:]}")
        summary = json.loads((Path(folder) / "out.summary.json").read_text())
    return Ran(summary["tally"]["rows"], summary["seconds"], peak)


def _watched(process: subprocess.Popen[bytes], look: Callable[[int], None]) -> int:
    """Wait for the process to end, and return its peak resident memory in bytes. Every LOOK_SECONDS, call `look`. (The
    value of wait4 includes the parent's memory at the fork.)
    """
    peak = 0
    while True:
        with contextlib.suppress(ProcessLookupError):
            peak = memory.peak_bytes(process.pid)
            look(process.pid)
        try:
            process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return peak


def _line(request: Request) -> str:
    body = {"prompt": request.prompt, "max_tokens": request.output_len, "temperature": 0, "ignore_eos": True}
    return json.dumps(body)
