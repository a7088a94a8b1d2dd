"""The work that backends are measured on: a decode of several sequences, and a chunk of a prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plimsoll_runtime.execution.attention.base import AttentionBatch


@dataclass(frozen=True, slots=True)
class Mix:
    """`decodes` sequences of one row each over `context` cached tokens, and one prompt's chunk of so many rows."""

    decodes: int
    context: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.decodes} decodes after {self.context} tokens, {self.chunk} tokens of a prompt"


CPU_MIX = Mix(decodes=16, context=512, chunk=256)
GPU_MIX = Mix(decodes=64, context=1024, chunk=2048)


def expected_mix(device: torch.device) -> Mix:
    """What a server of a device computes in a step, in its order of magnitude."""
    return CPU_MIX if device.type == "cpu" else GPU_MIX


def blocks_of(mix: Mix, block_size: int) -> int:
    """Blocks of a cache that holds either batch, the padding block included."""
    return max(mix.decodes * -(-mix.context // block_size), -(-mix.chunk // block_size)) + 1


def decode_batch(mix: Mix, block_size: int, device: torch.device) -> AttentionBatch:
    """One row of each sequence, at the end of its context."""
    return _batch([1] * mix.decodes, [mix.context] * mix.decodes, block_size, device)


def chunk_batch(mix: Mix, block_size: int, device: torch.device) -> AttentionBatch:
    """The first tokens of one prompt."""
    return _batch([mix.chunk], [mix.chunk], block_size, device)


def _batch(rows: Sequence[int], contexts: Sequence[int], block_size: int, device: torch.device) -> AttentionBatch:
    """Sequences whose blocks lie anywhere, as they do in a cache that has been used for a while."""
    needed = [-(-context // block_size) for context in contexts]
    free = list(range(1, sum(needed) + 1))
    random.Random(0).shuffle(free)
    tables = [[free.pop() for _ in range(count)] for count in needed]
    slots = [
        table[p // block_size] * block_size + p % block_size
        for count, context, table in zip(rows, contexts, tables, strict=True)
        for p in range(context - count, context)
    ]
    return AttentionBatch(rows, contexts, tables, torch.tensor(slots, device=device))
