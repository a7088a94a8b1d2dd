"""`python -m tiers.run`: time to the first token of a prompt whose prefix is computed, in the KV cache, or on disk.

"small" with a KV cache of 16,384 tokens, which the results call the pool. In each round a prompt of each length is sent
four times: new (all of it is computed), immediately again (the pool has it), and twice after other prompts have
displaced it (the disk has it: first with its files in the page cache, then with them dropped from it). The disk's times
are compared with the bytes read and with a floor: the time in which one thread reads as many files of blocks.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import question
from options import Options
from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from serving import models, quiet
from tables import Sheet

LENGTHS = (512, 1024, 2048)
POOL_TOKENS = 16384
BLOCK = 16
DISK = "4GiB"
PAUSE = 0.005
PARAMS = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def measure(chosen: Options) -> dict[str, Any]:
    """Return seconds to the first token and their ratios to computing, by length, medians of rounds."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-tiers-") as folder:
        bench = _Bench(Path(folder), chosen)
        bench.ask(bench.prompt(64))
        rounds = [bench.round() for _ in range(chosen.rounds)]
    by_length = {}
    for length in LENGTHS:
        rows = [r[str(length)] for r in rounds]
        medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        ratios = {
            f"{name}_to_computed": statistics.median(row[name] / row["computed"] for row in rows)
            for name in ("pool", "disk", "cold_disk")
        }
        by_length[str(length)] = {**medians, **ratios}
    return {"lengths": by_length, "rounds": rounds}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each length."""
    rows = []
    for length, row in result["lengths"].items():
        cells = [f"{row[name] * 1e3:.1f}" for name in ("computed", "pool", "disk", "floor", "cold_disk", "cold_floor")]
        ratios = [f"{row[f'{name}_to_computed']:.3f}x" for name in ("pool", "disk", "cold_disk")]
        rows.append([length, f"{row['bytes'] / 2**20:.1f}", *cells, *ratios])
    headings = ["tokens", "MiB", "computed, ms", "pool", "disk", "its floor", "disk, cold", "its floor"]
    return Sheet(
        "Time to the first token by place of the prefix", [*headings, "pool", "disk", "cold, of computed"], rows
    )


class _Bench:
    """An engine with a disk tier, and new prompts."""

    def __init__(self, folder: Path, chosen: Options) -> None:
        self._folder = folder
        self._random = random.Random(0)
        self._count = 0
        config = EngineConfig(
            model=models.source(models.SMALL),
            dtype="bfloat16",
            threads=chosen.threads,
            kv_memory=str((POOL_TOKENS + BLOCK) * models.SMALL.kv_bytes),
            max_model_len=max(LENGTHS) + BLOCK,
            kv_disk=str(folder),
            kv_disk_size=DISK,
        )
        self._core: EngineCore = build_engine(config, lambda stage, fraction: None)

    def prompt(self, length: int) -> list[int]:
        """Return a new prompt: a prefix of `length` tokens and one more token."""
        return [self._random.randrange(models.SMALL.vocab) for _ in range(length + 1)]

    def round(self) -> dict[str, Any]:
        """Return, by length, the seconds to the first token for each place of the prefix, the seconds for only reading
        as many files as it has, and its bytes.
        """
        prompts = {length: self.prompt(length) for length in LENGTHS}
        found: dict[str, Any] = {"cores_used_by_others": round(quiet.cores_in_use(), 2)}
        for length, prompt in prompts.items():
            row = {"computed": self._timed(prompt, 0, 0), "pool": self._timed(prompt, length, 0)}
            found[str(length)] = {**row, "bytes": length * models.SMALL.kv_bytes}
        for name in ("disk", "cold_disk"):
            self._displace()
            for length, prompt in prompts.items():
                if name == "cold_disk":
                    self._drop_pages()
                found[str(length)][name] = self._timed(prompt, length, length)
                found[str(length)]["cold_floor" if name == "cold_disk" else "floor"] = self._read(length, name)
        return found

    def ask(self, prompt: list[int]) -> int:
        """Generate one token for a prompt, and return its number of cached tokens."""
        self._count += 1
        self._core.add(AddRequest(str(self._count), prompt, RequestContext(PARAMS, PARAMS.output_seed())))
        while True:
            for output in self._core.step().outputs:
                return output.cached_tokens

    def _timed(self, prompt: list[int], cached: int, restored: int) -> float:
        """Return seconds to the first token. Raises RuntimeError unless `cached` prompt tokens were cached, of which
        `restored` came from the disk.
        """
        self._settle()
        before = self._restored()
        start = time.perf_counter()
        found = self.ask(prompt)
        seconds = time.perf_counter() - start
        if (found, self._restored() - before) != (cached, restored):
            raise RuntimeError(
                f"{found} tokens were found and {self._restored() - before} restored, not {cached}, {restored}"
            )
        return seconds

    def _displace(self) -> None:
        for _ in range(POOL_TOKENS // LENGTHS[0] + 4):
            self.ask(self.prompt(LENGTHS[0]))
            self._settle()

    def _restored(self) -> int:
        tiers = self._core.stats.tiers
        return 0 if tiers is None else tiers.hit_tokens

    def _settle(self) -> None:
        """Wait until the disk's threads are idle."""
        while (tiers := self._core.stats.tiers) is not None and tiers.under_way:
            time.sleep(PAUSE)
            self._core.step()

    def _files(self) -> list[Path]:
        return list(self._folder.glob("*/*.kv"))

    def _drop_pages(self) -> None:
        """Flush the files of all blocks to the disk, and drop them from the page cache."""
        for file in self._files():
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)

    def _read(self, length: int, name: str) -> float:
        """Return the seconds for reading as many files as a prefix has."""
        if name == "cold_disk":
            self._drop_pages()
        files = self._files()[: length // BLOCK]
        buffer = bytearray(files[0].stat().st_size)
        start = time.perf_counter()
        for file in files:
            with file.open("rb", buffering=0) as opened:
                opened.readinto(buffer)
        return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
