"""Tries one backend on a target: compares its results with the reference's, and measures its time.

The work is a decode of several sequences, and a chunk of a prompt.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch, BlockTables
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

REPEATS, MOST_REPEATS = 3, 50
"""The fewest and the most runs of a measurement. The shortest run counts, because disturbances only make a run longer.
"""
LEAST_SECONDS = 0.02
"""Runs are repeated for at least this long, up to `MOST_REPEATS`: another process may take the core for some
milliseconds, as long as all three runs of a small model.
"""
LENGTHS = 4
"""The number of prompt lengths that are timed on a GPU, each a token shorter than the one before. A library prepares
for each new length (cuDNN makes a plan), and so it does while serving, where prompts have any length.
"""
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Allowed error of values around 1. GPUs may multiply float32 with 10 bits of mantissa."""

Clock = Callable[[], float]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Queries, keys and values of a step's rows, and sinks of the heads."""
Work = tuple[AttentionBatch, Sequence[Inputs]]
"""A step, and the inputs of its layers."""


@dataclass(frozen=True, slots=True)
class Mix:
    """`decodes` sequences of one row each over `context` cached tokens, and a chunk of one prompt with `chunk` rows."""

    decodes: int
    context: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.decodes} decodes after {self.context} tokens, {self.chunk} tokens of a prompt"


CPU_MIX = Mix(decodes=16, context=512, chunk=256)
GPU_MIX = Mix(decodes=64, context=1024, chunk=2048)
SMALL = Mix(decodes=3, context=40, chunk=40)


def expected_mix(device: torch.device) -> Mix:
    """Return the typical work of a server's step on a device, by order of magnitude."""
    return CPU_MIX if device.type == "cpu" else GPU_MIX


class WrongResultError(Exception):
    """A backend's results differ from the reference's."""


class TimeUpError(Exception):
    """The time for measuring is over."""


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """A clock in seconds and the deadline of measuring. If `patient`, each batch is timed once even after the
    deadline.
    """

    clock: Clock
    deadline: float
    patient: bool = True

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.clock() >= self.deadline


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of all layers' attention in a step of decodes, and in a step with a chunk of a prompt."""

    decode_ms: float
    chunk_ms: float

    @property
    def total_ms(self) -> float:
        """The sum of both, because a step of continuous batching has decodes and a chunk."""
        return self.decode_ms + self.chunk_ms


def check(backend: type[AttentionBackend], target: Target, expected: Sequence[Tensor]) -> None:
    """Compare the backend's `small_steps` with `expected`, those of the reference. Raises WrongResultError, or any
    error of the backend.
    """
    error = max(float((a - e).abs().max()) for a, e in zip(small_steps(backend, target), expected, strict=True))
    # NaN must fail, so the condition is negated.
    if not error <= TOLERANCE[target.dtype]:
        raise WrongResultError(f"its results differ from the reference's by {error:.2g}")


def measure(backend: type[AttentionBackend], target: Target, mix: Mix, watch: Stopwatch) -> Timing:
    """Time both batches of a mix over a private cache of the target's dtype and block size. Raises TimeUpError."""
    counts = Counter(target.shapes)
    size, device = target.block_size, target.device
    runner = _Runner(backend, target, list(counts), _blocks_of(mix, size))

    def milliseconds(batches: Sequence[AttentionBatch]) -> float:
        drawn = [_inputs(shape, batches[0], target) for shape in counts]
        works = [(batch, [_first(inputs, batch.cells.numel()) for inputs in drawn]) for batch in batches]
        seconds = runner.best_seconds(works, watch)
        return 1e3 * (seconds[0] + sum(s * n for s, n in zip(seconds[1:], counts.values(), strict=True)))

    decodes = milliseconds([_decode_batch(mix, size, device)])
    return Timing(decodes, milliseconds([_chunk_batch(length, size, device) for length in lengths_of(mix, device)]))


def lengths_of(mix: Mix, device: torch.device) -> list[int]:
    """Return the lengths of the prompts that are timed, the longest first."""
    return [mix.chunk - less for less in range(1 if device.type == "cpu" else LENGTHS) if less < mix.chunk]


class _Runner:
    """A backend over a small cache with one layer for each distinct shape."""

    def __init__(
        self, backend: type[AttentionBackend], target: Target, shapes: Sequence[AttentionShape], blocks: int
    ) -> None:
        cache = KvCache(shapes, blocks, target.block_size, target.dtype, target.device)
        self._device = target.device
        self._backend = backend(cache)

    def run(self, batch: AttentionBatch, inputs: Sequence[Inputs]) -> list[Tensor]:
        """Compute a step and return the output of each layer."""
        attention = self._backend.begin(batch)
        return [attention(layer, *tensors) for layer, tensors in enumerate(inputs)]

    def best_seconds(self, works: Sequence[Work], watch: Stopwatch) -> list[float]:
        """Return the least seconds of the step's `begin` and of each layer. One earlier run pays for compilation and
        new pages.

        If there are several works, the earlier run computes the first, and each of the others is timed at most once.
        """
        self.run(*works[0])
        if watch.is_over() and not watch.patient:
            raise TimeUpError
        others = works[1:]
        most = len(others) or MOST_REPEATS
        enough = watch.clock() + LEAST_SECONDS
        runs = [self._seconds(*(others or works)[0], watch.clock)]
        while not watch.is_over() and (len(runs) < min(REPEATS, most) or (len(runs) < most and watch.clock() < enough)):
            runs.append(self._seconds(*(others[len(runs)] if others else works[0]), watch.clock))
        return [min(part) for part in zip(*runs, strict=True)]

    def _seconds(self, batch: AttentionBatch, inputs: Sequence[Inputs], clock: Clock) -> list[float]:
        marks = [self._now(clock)]
        attention = self._backend.begin(batch)
        marks.append(self._now(clock))
        for layer, tensors in enumerate(inputs):
            attention(layer, *tensors)
            marks.append(self._now(clock))
        return [end - start for start, end in itertools.pairwise(marks)]

    def _now(self, clock: Clock) -> float:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        return clock()


def small_steps(backend: type[AttentionBackend], target: Target) -> list[Tensor]:
    """Compute small steps and return the outputs of all shapes in float32: a prompt in shuffled blocks, its second half
    as a chunk after the first, and a decode.
    """
    shapes = list(dict.fromkeys(target.shapes))
    runner = _Runner(backend, target, shapes, _blocks_of(SMALL, target.block_size))
    prompt = _chunk_batch(SMALL.chunk, target.block_size, target.device)
    # The last tokens again, as if the others had been cached before.
    later = [
        AttentionBatch([rows], [SMALL.chunk], prompt.block_tables, prompt.cells[SMALL.chunk - rows :])
        for rows in (SMALL.chunk // 2, 1)
    ]
    outputs = []
    for seed, batch in enumerate((prompt, *later)):
        outputs += runner.run(batch, [_inputs(shape, batch, target, seed) for shape in shapes])
    return [out.float() for out in outputs]


def _inputs(shape: AttentionShape, batch: AttentionBatch, target: Target, seed: int = 0) -> Inputs:
    """Draw queries, keys and values of a batch's rows, and sinks. They are the same for every backend."""
    generator = torch.Generator().manual_seed(seed)
    rows = batch.cells.numel()
    query, key, value = (
        torch.randn(rows, heads, shape.head_dim, generator=generator).to(target.device, target.dtype)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    value = key if shape.latent else value
    sinks = torch.randn(shape.heads, generator=generator).to(target.device) if shape.sinks else None
    return query, key, value, sinks


def _first(inputs: Inputs, rows: int) -> Inputs:
    """Return the inputs of a step's first rows."""
    query, key, value, sinks = inputs
    return query[:rows], key[:rows], value[:rows], sinks


def _blocks_of(mix: Mix, block_size: int) -> int:
    """Return the number of blocks of a cache that holds either batch of a mix, including the padding block."""
    return max(mix.decodes * -(-mix.context // block_size), -(-mix.chunk // block_size)) + 1


def _decode_batch(mix: Mix, block_size: int, device: torch.device) -> AttentionBatch:
    """Return a batch with one row of each sequence, at the end of its context."""
    return _batch([1] * mix.decodes, [mix.context] * mix.decodes, block_size, device)


def _chunk_batch(length: int, block_size: int, device: torch.device) -> AttentionBatch:
    """Return a batch with the first tokens of one prompt."""
    return _batch([length], [length], block_size, device)


def _batch(rows: Sequence[int], contexts: Sequence[int], block_size: int, device: torch.device) -> AttentionBatch:
    """Return sequences with shuffled blocks, as in a cache that has been used for a while."""
    needed = [-(-context // block_size) for context in contexts]
    free = list(range(1, sum(needed) + 1))
    random.Random(0).shuffle(free)
    tables = [[free.pop() for _ in range(count)] for count in needed]
    cells = [
        table[p // block_size] * block_size + p % block_size
        for count, context, table in zip(rows, contexts, tables, strict=True)
        for p in range(context - count, context)
    ]
    return AttentionBatch(rows, contexts, BlockTables.of(tables), torch.tensor(cells, device=device))
