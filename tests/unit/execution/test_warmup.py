"""Warm-up steps: within the limits, and of every kind that kernels are compiled for."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plimsoll_runtime.execution.attention.base import AttentionBatch, NoAttention
from plimsoll_runtime.execution.attention.shared_prefix import grouping
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.warmup import compile_kernels, shared_prefix_batches, warmup_batches
from plimsoll_runtime.models.spec.attention import AttentionShape


def test_decodes_chunks_and_both() -> None:
    assert list(warmup_batches([255, 300], 300, 64, 700)) == [
        [(1, 255)],
        [(1, 300)],
        [(1, 1)] * 64,
        [(17, 17), (1, 1), (1, 1)],
        [(300, 300), (300, 300), (100, 100)],
    ]


def test_no_step_is_larger_than_the_limits() -> None:
    for longest, sequences, tokens in product((2, 16, 100), (1, 2, 3, 40), (1, 2, 17, 18, 50)):
        for rows in warmup_batches([longest], longest, sequences, tokens):
            assert 0 < len(rows) <= sequences
            assert sum(count for count, _ in rows) <= tokens
            assert all(0 < count <= context <= longest for count, context in rows)


def backend_of(monkeypatch: pytest.MonkeyPatch, shape: AttentionShape) -> Any:
    """Return Triton's backend for a device of 132 multiprocessors."""
    pytest.importorskip("triton")
    from plimsoll_runtime.execution.attention.backends import triton

    monkeypatch.setattr(triton, "multiprocessors", lambda device: 132)
    return triton.TritonBackend(KvCache([shape], 9, 4, torch.float32, torch.device("cpu")))


LLAMA = AttentionShape(heads=32, kv_heads=8, head_dim=128, scale=0.1)


def test_decodes_that_share_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each division of contexts among programs that two or more sequences may have, once."""
    backend = backend_of(monkeypatch, LLAMA)
    steps = list(shared_prefix_batches(backend, 4000, 40, 8192))
    assert [(len(rows), rows[0]) for rows in steps] == [
        (40, (1, 4000)),
        (16, (1, 4000)),
        (8, (1, 4000)),
        (4, (1, 4000)),
        (2, (1, 4000)),
    ]
    divisions = [backend.launch_key(len(rows), 4000) for rows in steps]
    assert divisions == [(1,), (2,), (4,), (8,), (16,)]
    every = {backend.launch_key(count, length) for count in range(2, 41) for length in range(1, 4001)}
    assert every == set(divisions)
    assert list(shared_prefix_batches(backend, 4000, 1, 8192)) == []


@pytest.mark.parametrize("latent", [False, True])
def test_what_never_shares_has_no_steps_that_share(latent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the padding block, decodes of one length share all but their own block."""
    monkeypatch.setattr(grouping, "LAUNCH_BYTES", 0)
    shape = AttentionShape(heads=4, kv_heads=1, head_dim=16, scale=0.25, latent=True) if latent else LLAMA
    passes: Any = Passes(most=300, groups=1)
    passes.backend = backend_of(monkeypatch, shape)
    cache: Any = SimpleNamespace(device=torch.device("cpu"), block_size=4, groups=((0,),))
    compile_kernels(passes, cache, 150, 2, 200)
    assert ([1, 1], [149, 149], [0, 1]) in passes.seen or latent
    shared = [passes.backend.prefixes.of(batch)[0] for batch in passes.batches]
    assert [each is not None for each in shared].count(True) == (0 if latent else 1)


class Passes:
    """A forward pass that records its steps."""

    def __init__(self, most: int = 100, groups: int = 2) -> None:
        self._most = most
        self._groups = groups
        self.batches: list[AttentionBatch] = []
        self.backend = NoAttention(SimpleNamespace(shapes=()))  # type: ignore[arg-type]
        self.seen: list[tuple[list[int], list[int], list[int]]] = []

    def run(self, inputs: StepInputs) -> None:
        token_ids, positions, batch = inputs.token_ids, inputs.positions, inputs.batch
        assert len(token_ids) == len(positions) == sum(batch.query_lens)
        assert len(batch.groups) == self._groups
        for group in batch.groups:
            assert not any(group.block_tables.blocks), "the padding block's"
            assert not group.cells.any()
            needed = [-(-context // 4) for context in group.context_lens]
            assert list(group.block_tables.counts) == needed
        if len(token_ids) > self._most:
            raise torch.OutOfMemoryError("tried to allocate 2 GiB")
        self.batches.append(batch)
        self.seen.append((list(batch.query_lens), positions.tolist(), list(inputs.slots)))


def test_a_step_without_memory_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """The engine must be ready for the next step."""
    passes: Any = Passes(most=11)
    cache: Any = SimpleNamespace(device=torch.device("cpu"), block_size=4, groups=((0,), (1,)))
    compile_kernels(passes, cache, 9, 3, 12)
    assert [counts for counts, _, _ in passes.seen] == [[1], [1, 1, 1], [9, 1, 1]]
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(
        "the device has too little memory for a warm-up step of 12 rows (tried to allocate 2 GiB): "
    )


def test_they_are_computed_over_the_padding_block() -> None:
    passes: Any = Passes()
    cache: Any = SimpleNamespace(device=torch.device("cpu"), block_size=4, groups=((0,), (1,)))
    compile_kernels(passes, cache, 9, 3, 12)
    assert passes.seen == [
        ([1], [8], [0]),
        ([1, 1, 1], [0, 0, 0], [0, 1, 2]),
        ([9, 1, 1], [*range(9), 0, 0], [0, 1, 2]),
        ([9, 3], [*range(9), *range(3)], [0, 1]),
    ]
