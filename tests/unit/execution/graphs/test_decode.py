"""Graphs of decodes: one capture before all steps is right for each of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.recorder import Recorder
from kernel_support.rows import rows_of, state_of
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.graphs.capture import Captured, CudaCapture
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.models.spec.attention import AttentionShape

BLOCK, BLOCKS, MOST, LONGEST = 4, 40, 20, 64
BUCKETS = (1, 2, 4, 8, 16, MOST)
SHAPE = AttentionShape(heads=2, kv_heads=1, head_dim=4, scale=0.5)


class Echo:
    """A backend and a decoder in one: a row's hidden state is all inputs of the row."""

    outline: Any = None
    dtype = torch.float32
    weight_bytes = 0

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Any:
        self.launched = paged[0].max_context_len
        return list(zip(paged, cells, strict=True))

    def launch_key(self, sequences: int, longest: int) -> Hashable:
        return longest > LONGEST // 2

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        return [LONGEST // 2, most]

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Any, states: Any = None) -> Tensor:
        found = [token_ids, positions]
        for paged, cells in attention:
            assert paged.decodes == len(token_ids) == len(paged.context_lens)
            assert paged.query_starts.tolist() == list(range(len(token_ids) + 1))
            columns = torch.arange(paged.block_tables.shape[1])
            used = columns < -(-paged.context_lens[:, None] // BLOCK)
            tables = torch.where(used, paged.block_tables * (columns + 1), 0).sum(1)
            found += [cells, paged.context_lens, tables]
        return torch.stack(found, 1).float()

    def logits(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError


class Graphs(DecodeGraphs):
    """Graphs over a state of their own."""

    def __init__(self, capture: Any, *, captured: bool = True) -> None:
        cache = KvCache([SHAPE] * 2, BLOCKS, BLOCK, torch.float32, torch.device("cpu"), groups=[[0], [1]])
        echo, self.state = Echo(), state_of(cache, MOST + 1, LONGEST)
        super().__init__(StepParts(echo, cache), echo, self.state, capture, max_sequences=MOST, max_model_len=LONGEST)
        if captured:
            for each in self.wanted():
                each.add()

    def step(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> Tensor | None:
        return self.run(rows_of(self.state, BLOCK, tokens, positions, batch))


def step(contexts: list[int], seed: int = 0) -> tuple[Tensor, Tensor, AttentionBatch]:
    """Return decodes over these contexts, in shuffled blocks; a second group keeps the last two blocks."""
    generator = torch.Generator().manual_seed(seed)
    kept = [n - max(0, (n - 1) // BLOCK - 1) * BLOCK for n in contexts]
    tokens = torch.randint(0, 99, (len(contexts),), generator=generator)
    batch = group(contexts, generator, (group(kept, generator),))
    return tokens, torch.tensor(contexts) - 1, batch


def group(contexts: list[int], generator: torch.Generator, rest: tuple[AttentionBatch, ...] = ()) -> AttentionBatch:
    tables = [torch.randint(1, BLOCKS, (-(-n // BLOCK),), generator=generator).tolist() for n in contexts]
    cells = [table[-1] * BLOCK + (n - 1) % BLOCK for n, table in zip(contexts, tables, strict=True)]
    return AttentionBatch([1] * len(contexts), contexts, BlockTables.of(tables), torch.tensor(cells), rest)


def expected(tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> Tensor:
    columns = [tokens, positions]
    for each in batch.groups:
        tables = each.block_tables
        bounds = zip(tables.begins, tables.counts, strict=True)
        sums = [sum((i + 1) * tables.blocks[begin + i] for i in range(count)) for begin, count in bounds]
        columns += [each.cells, torch.tensor(each.context_lens), torch.tensor(sums)]
    return torch.stack(columns, 1).float()


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.lists(st.integers(1, LONGEST), min_size=1, max_size=MOST), min_size=1, max_size=8))
def test_every_step_is_its_own(steps: list[list[int]]) -> None:
    """Nothing of the capture or of a longer step remains in a later one, and no step captures."""
    capture = Recorder()
    decoder = Graphs(capture)
    for seed, contexts in enumerate(steps):
        made = step(contexts, seed)
        hidden = decoder.step(*made)
        assert hidden is not None
        torch.testing.assert_close(hidden, expected(*made))
        decoder.state.check_integrity()
    assert capture.captures == len(decoder._graphs) == 2 * len(BUCKETS), "one for each size and key, before all steps"


def test_tokens_that_only_the_device_has() -> None:
    decoder = Graphs(Recorder())
    decoder.state.record(torch.tensor([0, 2]), torch.tensor([70, 72]))
    rows = rows_of(decoder.state, BLOCK, *step([9, 5, 7]))
    rows.known[::2], rows.sources[::2] = 0, [0, 2]
    hidden = decoder.run(rows)
    assert hidden is not None
    assert hidden[:, 0].tolist() == [70, int(rows.known[1]), 72]


def test_what_is_new_in_tables_is_told_once_it_is_there() -> None:
    """A replay that failed may not have written it, so it is sent again."""
    decoder = Graphs(Recorder())
    made, graph = step([4, 2, 3]), decoder._graphs[4, False, False]
    failed = Captured(graph.out, lambda: (_ for _ in ()).throw(RuntimeError("lost")))
    decoder._graphs[4, False, False] = failed
    with pytest.raises(RuntimeError, match="lost"):
        decoder.step(*made)
    [tables, _] = decoder.state.tables
    assert not tables.on_device.any()
    assert tables.missing()[0].size == 3
    assert torch.equal(rows_of(decoder.state, BLOCK, *made).inputs().batch.cells, made[2].cells)
    decoder.state.check_integrity()
    assert tables.on_device.any()


def test_padding_attends_to_the_block_of_nobody() -> None:
    decoder = Graphs(Recorder())
    decoder.step(*step([60] * 20))
    decoder.step(*step([9] * 5, 1))
    smaller = decoder._graphs[8, False, False].out
    assert smaller[5:].tolist() == [[0, 0, 0, 1, 0, 0, 1, 0]] * 3


def test_what_is_no_batch_of_decodes() -> None:
    decoder = Graphs(Recorder())
    assert decoder.step(*step([5] * (MOST + 1))) is None
    chunk = AttentionBatch([2, 1], [2, 3], BlockTables.of([[1], [2]]), torch.tensor([4, 5, 10]))
    assert decoder.step(torch.zeros(3).long(), torch.zeros(3).long(), chunk) is None


def test_a_size_without_a_graph_is_the_callers() -> None:
    capture = Recorder()
    decoder = Graphs(capture, captured=False)
    wanted = decoder.wanted()
    assert [(each.kind, each.rows) for each in wanted] == [("decodes", size) for size in BUCKETS for _ in range(2)]
    assert decoder.step(*step([5])) is None
    for each in wanted[2:4]:
        each.add()
    assert decoder.step(*step([5])) is None, "one for more sequences would do, and would compute twice as much"
    assert decoder.step(*step([5, 60])) is not None
    assert decoder.step(*step([5, 6])) is not None
    assert capture.captures == len(decoder._graphs) == 2


def test_a_graph_is_captured_for_the_longest_of_its_key() -> None:
    capture = Recorder()
    decoder = Graphs(capture, captured=False)
    wanted = decoder.wanted()[:2]
    launched = []
    for each in wanted:
        each.add()
        launched.append(decoder._backend.launched)  # type: ignore[attr-defined]
    assert launched == [LONGEST // 2, LONGEST]


def test_errors_of_the_work_itself_come_out() -> None:
    decoder = Graphs(Recorder(TypeError("the model is wrong")), captured=False)
    with pytest.raises(TypeError, match="the model is wrong"):
        decoder.wanted()[0].add()


@pytest.mark.gpu
def test_a_graph_on_a_gpu() -> None:
    """Captured work reads its inputs again at each replay, also while the host is ahead."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    device = torch.device("cuda")
    numbers = torch.zeros(1024, device=device)
    capture = CudaCapture(device)
    captured = capture(lambda: numbers.sin().cumsum(0) * 2)
    assert 0 < capture.used <= torch.cuda.get_device_properties(device).total_memory
    for value in (0.5, 1.5):
        numbers.fill_(value)
        captured.replay()
        torch.testing.assert_close(captured.out, torch.full_like(numbers, value).sin().cumsum(0) * 2)
