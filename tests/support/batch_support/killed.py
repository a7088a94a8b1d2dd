"""`python killed.py TOKENIZER INPUT OUTPUT TIMES SEED`: a batch that is killed at random instants.

A run is a fork that SIGKILL ends at one of its calls that change the disk: before the call, after it, or in the
middle of a write. Prints how many runs were killed.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from batch_support.mirror import Loader, Silent
from plimsoll_runtime.api.batches import offline
from plimsoll_runtime.batch.store import Store
from plimsoll_runtime.engine.config import EngineConfig

CALLS = ("pwrite", "fsync", "ftruncate", "replace", "unlink")


class Killer:
    """Counts calls that change the disk, and ends the process at one of them."""

    def __init__(self, at: int, when: int) -> None:
        self._left = at
        self._when = when
        self.calls = 0
        for name in CALLS:
            setattr(os, name, partial(self._call, getattr(os, name)))

    def _call(self, real: Any, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        self._left -= 1
        if self._left == 0:
            if self._when == 1:
                real(*arguments, **named)
            elif self._when == 2 and real.__name__ == "pwrite":
                descriptor, data, offset = arguments
                real(descriptor, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)


def forked(config: offline.BatchConfig, loader: Loader, at: int, when: int) -> tuple[int, int]:
    """Return the status of a run that is killed at a call, and the number of its calls if it completed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        killer = Killer(at, when)
        offline.run_batch(config, Silent(), load=loader)
        os.write(writer, str(killer.calls).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        return status, int(told.read() or 0)


def main(tokenizer: str, given: str, output: str, times: str, seed: str) -> None:
    loader, rng = Loader(Path(tokenizer)), Random(seed)
    setattr(offline, "Store", partial(Store, mark_bytes=2_000, kept_bytes=8_000))  # noqa: B010

    def config(name: str) -> offline.BatchConfig:
        return offline.BatchConfig(EngineConfig(model="m", max_sequences=8), ("m",), given, Path(output) / name)

    status, calls = forked(config("whole.jsonl"), loader, 0, 0)
    assert status == 0, "the undisturbed run fails"
    killed = 0
    for _ in range(int(times)):
        status, _ = forked(config("killed.jsonl"), loader, rng.randrange(1, 2 + calls // 12), rng.randrange(3))
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    status, _ = forked(config("killed.jsonl"), loader, 0, 0)
    assert status == 0, "the last run fails"
    print(killed)


if __name__ == "__main__":
    main(*sys.argv[1:])
