"""Steps of several sequences through a backend; each row is compared with attention over dense keys and values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.reference import attention_reference
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch, BlockTables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


@dataclass
class Table:
    """The blocks of a sequence in a cache group, from block `first` on."""

    first: int = 0
    blocks: list[int] = field(default_factory=list)


@dataclass
class Sequenced:
    """A sequence: its blocks in each group, and all keys and values of each layer so far, dense."""

    tables: list[Table]
    keys: list[list[Tensor]] = field(default_factory=list)
    values: list[list[Tensor]] = field(default_factory=list)
    length: int = 0


class Simulation:
    """Sequences that grow step by step in a cache whose other cells are all NaN.

    A group whose layers all have a window frees the blocks outside the largest, which become NaN as well.
    """

    def __init__(
        self,
        backend: type[AttentionBackend],
        shapes: Sequence[AttentionShape],
        dtype: torch.dtype,
        block_size: int,
        num_blocks: int,
        device: str = "cpu",
        seed: int = 0,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.cache = KvCache(shapes, num_blocks, block_size, dtype, torch.device(device), groups=groups)
        for tensor in (*self.cache.keys, *self.cache.values):
            tensor.fill_(float("nan"))
        self.backend = backend(self.cache)
        self.sequences: list[Sequenced] = []
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._free = list(range(1, num_blocks))

    def add(self) -> int:
        tables = [Table() for _ in self.cache.groups]
        self.sequences.append(Sequenced(tables, [[] for _ in self.cache.shapes], [[] for _ in self.cache.shapes]))
        return len(self.sequences) - 1

    def step(self, rows: dict[int, int]) -> None:
        """Compute new tokens of each sequence (`rows`), and compare all of them in every layer."""
        chosen = [self.sequences[i] for i in rows]
        for sequence, count in zip(chosen, rows.values(), strict=True):
            sequence.length += count
        batch = None
        for group in reversed(range(len(self.cache.groups))):
            rest = () if batch is None else batch.groups
            batch = self._in_group(group, chosen, list(rows.values()), rest)
        assert batch is not None
        attention = self.backend.begin(batch)
        cells = batch.cells
        for layer, shape in enumerate(self.cache.shapes):
            query, key, value = (
                torch.randn(len(cells), h, shape.head_dim, generator=self._generator).to(self.cache.dtype)
                for h in (shape.heads, shape.kv_heads, shape.kv_heads)
            )
            value = key if shape.latent else value
            sinks = 3 * torch.randn(shape.heads, generator=self._generator) if shape.sinks else None
            expected = self._expected(layer, shape, chosen, list(rows.values()), query, key, value, sinks)
            device = self.cache.device
            there = None if sinks is None else sinks.to(device)
            actual = attention(layer, query.to(device), key.to(device), value.to(device), there).cpu()
            assert actual.shape == query.shape
            assert actual.dtype == query.dtype
            tolerance = TOLERANCE[self.cache.dtype]
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    def _in_group(
        self, group: int, chosen: Sequence[Sequenced], counts: list[int], rest: tuple[AttentionBatch, ...]
    ) -> AttentionBatch:
        cells, size = [], self.cache.block_size
        for sequence, count in zip(chosen, counts, strict=True):
            table, start = sequence.tables[group], sequence.length - count
            self._give_back(group, table, start)
            while (table.first + len(table.blocks)) * size < sequence.length:
                table.blocks.append(self._free.pop(self._random.randrange(len(self._free))))
            cells += [table.blocks[p // size - table.first] * size + p % size for p in range(start, sequence.length)]
        return AttentionBatch(
            counts,
            [s.length - s.tables[group].first * size for s in chosen],
            BlockTables.of([s.tables[group].blocks for s in chosen]),
            torch.tensor(cells, device=self.cache.device),
            rest,
            max(s.length for s in chosen),
        )

    def _give_back(self, group: int, table: Table, position: int) -> None:
        windows = [self.cache.shapes[layer].window for layer in self.cache.groups[group]]
        if None in windows:
            return
        seen = max(0, position - max(w for w in windows if w is not None) + 1)
        while table.first < seen // self.cache.block_size:
            table.first += 1
            block = table.blocks.pop(0)
            self._free.append(block)
            for layer in self.cache.groups[group]:
                self.cache.keys[layer][:, block] = self.cache.values[layer][:, block] = float("nan")

    def _expected(
        self,
        layer: int,
        shape: AttentionShape,
        chosen: Sequence[Sequenced],
        counts: Sequence[int],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        outputs = []
        parts = (torch.split(x, list(counts)) for x in (query, key, value))
        for sequence, q, k, v in zip(chosen, *parts, strict=True):
            sequence.keys[layer].append(k.transpose(0, 1))
            sequence.values[layer].append(v.transpose(0, 1))
            dense = (torch.cat(x[layer], 1) for x in (sequence.keys, sequence.values))
            alibi = shape.alibi
            outputs.append(
                attention_reference(
                    q,
                    *dense,
                    scale=shape.scale,
                    window=shape.window,
                    softcap=shape.softcap,
                    chunk=shape.chunk,
                    slopes=None if alibi is None else torch.tensor(alibi.slopes),
                    coarse=alibi is not None and alibi.coarse,
                    sinks=sinks,
                )
            )
        return torch.cat(outputs)


@pytest.fixture
def simulation() -> Callable[..., Simulation]:
    return Simulation


@pytest.fixture(scope="session")
def simulation_class() -> Callable[..., Simulation]:
    """Return the class of `simulation`, for tests that hypothesis calls many times."""
    return Simulation
