"""Two backends that share a step by sequences compute the same as the reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from inspect import getattr_static
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_support.rows import rows_of, state_of
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.op import write_cache
from plimsoll_runtime.execution.attention import base, cache_write, step_tables
from plimsoll_runtime.execution.attention import split as module
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.backends.sdpa import SdpaBackend
from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionError,
    BlockTables,
    prepare_step,
)
from plimsoll_runtime.execution.attention.shared_prefix.planner import SharingBackend, StepPrefixes
from plimsoll_runtime.execution.attention.split import exclude_failed, parts_of, split_backend
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.graphs.decode import GraphBackend
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.models.layers.attention import Attention, RotatingAttention
from plimsoll_runtime.models.layers.device_copy import to_device
from plimsoll_runtime.models.spec.attention import Alibi, AttentionShape

Simulate = Callable[..., Any]
CPU = torch.device("cpu")
SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=16, scale=0.25)
SLOPES = Alibi((0.5, 0.3, 0.11, 0.002))
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 9},
    "chunk": {"chunk": 20},
    "alibi": {"alibi": SLOPES},
    "sinks": {"sinks": True},
    "latent": {"latent": True},
}


def shape(kv_heads: int, head_dim: int, **more: Any) -> AttentionShape:
    return AttentionShape(heads=4, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, **more)


class Chunks(ReferenceBackend):
    """Refuses decodes; tests set its failures."""

    name: ClassVar[str] = "chunks"
    error: ClassVar[Exception | None] = None

    def begin(self, batch: AttentionBatch) -> Attention:
        assert min(batch.query_lens) > 1
        return failing(super().begin(batch), self.error)


class Decodes(ReferenceBackend):
    """Only accepts decodes."""

    name: ClassVar[str] = "decodes"
    error: ClassVar[Exception | None] = None

    def begin(self, batch: AttentionBatch) -> Attention:
        assert max(batch.query_lens) == 1
        return failing(super().begin(batch), self.error)


def failing(step: Attention, error: Exception | None) -> Attention:
    def attention(
        layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        if error is not None:
            raise error
        return step(layer, query, key, value, sinks)

    return attention


def made(base: type[Any], called: str, error: Exception | None = None) -> type[AttentionBackend]:
    return type("Made", (base,), {"name": called, "error": error})


PAIRS = {
    "stubs": (Chunks, Decodes),
    "sdpa-reference": (SdpaBackend, ReferenceBackend),
    "reference-sdpa": (ReferenceBackend, SdpaBackend),
}


@pytest.mark.matrix(11)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kinds_of_attention(
    simulation: Simulate, pair: tuple[type[AttentionBackend], type[AttentionBackend]], kind: dict[str, Any]
) -> None:
    """Chunks before, between and after decodes; steps of one kind alone."""
    shapes = [shape(2, 16, **kind), shape(4, 24), shape(1, 32, **kind)]
    run = simulation(split_backend(*pair), shapes, torch.float32, 16, 80)
    a, b, c, d = (run.add() for _ in range(4))
    run.step({a: 21, b: 1})
    run.step({b: 1, a: 1, c: 30, d: 2})
    run.step({c: 37, a: 1, d: 9, b: 1})
    run.step({a: 1, b: 1, c: 1})
    run.step({d: 40, c: 2})


@pytest.mark.matrix(3)
@pytest.mark.parametrize("kind", ["plain", "window", "sinks"])
def test_our_kernels_decode(simulation: Simulate, triton_device: str, kind: str) -> None:
    shapes = [shape(2, 16, **KINDS[kind]), shape(1, 32, **KINDS[kind])]
    run = simulation(split_backend(SdpaBackend, TritonBackend), shapes, torch.float32, 16, 40, device=triton_device)
    a, b, c = (run.add() for _ in range(3))
    run.step({a: 21, b: 1})
    run.step({b: 1, c: 30, a: 1})
    run.step({a: 1, b: 1, c: 1})


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 5), st.one_of(st.just(1), st.integers(1, 60))),
            min_size=1,
            unique_by=lambda r: r[0],
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([None, 1, 9, 70]),
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.sampled_from([4, 16, 32]),
)
def test_any_batch(
    simulation_class: Simulate,
    steps: list[list[tuple[int, int]]],
    window: int | None,
    heads: tuple[int, int],
    block_size: int,
) -> None:
    shapes = [AttentionShape(*heads, head_dim=16, scale=0.25, window=window)]
    run = simulation_class(split_backend(ReferenceBackend, SdpaBackend), shapes, torch.float32, block_size, 600)
    for _ in range(6):
        run.add()
    for rows in steps:
        run.step(dict(rows))


def test_groups_of_the_cache(simulation: Simulate) -> None:
    shapes = [shape(2, 16, window=9), shape(2, 16), shape(2, 16, window=20)]
    run = simulation(split_backend(Chunks, Decodes), shapes, torch.float32, 16, 40, groups=[[1], [0], [2]])
    a, b, c = (run.add() for _ in range(3))
    run.step({a: 21, b: 1})
    run.step({b: 1, a: 1, c: 30})
    for _ in range(4):
        run.step({a: 18, b: 1, c: 1})


def test_rows_are_a_permutation_of_those_of_each_part(simulation: Simulate) -> None:
    """A row's result does not depend on its sequence's place."""
    counts = {0: 1, 1: 5, 2: 1, 3: 7}
    for order in itertools.permutations(counts):
        run = simulation(split_backend(Chunks, Decodes), [SHAPE], torch.float32, 16, 40)
        run.step(dict.fromkeys([run.add() for _ in counts], 11))
        run.step({i: counts[i] for i in order})


def batch_of(rows: Sequence[int]) -> AttentionBatch:
    """Return sequences of one block of 16; all tokens are in the step, or before it for those of one row."""
    contexts = [9 if count == 1 else count for count in rows]
    cells = [
        16 * (i + 1) + p
        for i, (count, context) in enumerate(zip(rows, contexts, strict=True))
        for p in range(context - count, context)
    ]
    return AttentionBatch(rows, contexts, BlockTables.of([[i + 1] for i in range(len(rows))]), torch.tensor(cells))


def inputs(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(rows, heads, 16, generator=generator) for heads in (4, 2, 2))  # type: ignore[return-value]


def test_keys_and_values_are_written_once_before_any_row_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def write(*arguments: Any, **options: Any) -> None:
        seen.append(f"written {len(arguments[0])}")
        write_cache(*arguments, **options)

    class Watching(ReferenceBackend):
        name: ClassVar[str] = "watching"

        def begin(self, batch: AttentionBatch) -> Attention:
            inner = super().begin(batch)

            def attention(
                layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
            ) -> Tensor:
                assert key is None
                assert value is None
                seen.append(f"attended {len(query)}")
                return inner(layer, query, key, value, sinks)

            return attention

    monkeypatch.setattr(cache_write, "write_cache", write)
    cache = KvCache([SHAPE], 5, 16, torch.float32, CPU)
    step = split_backend(Watching, Watching, "both")(cache).begin(batch_of([1, 5, 1]))
    step(0, *inputs(7))
    assert seen == ["written 7", "attended 5", "attended 2"]
    seen.clear()
    step(0, inputs(7)[0], None, None)
    assert seen == ["attended 5", "attended 2"], "a layer that reads what another one has written"


@pytest.mark.matrix(2)
@pytest.mark.parametrize("rows", [[1, 5, 1, 3], [7, 3]], ids=["both", "chunks"])
def test_heads_are_rotated_for_both_where_one_of_them_rotates(triton_device: str, rows: list[int]) -> None:
    """Triton's backend rotates, the other does not."""
    device = torch.device(triton_device)
    batch = batch_of(rows)
    moved = AttentionBatch(batch.query_lens, batch.context_lens, batch.block_tables, batch.cells.to(device))
    heads = torch.randn(10, 8, 16, device=device)
    cos, sin = torch.randn(2, 10, 8, device=device)
    outputs, caches = [], []
    for backend in (TritonBackend, split_backend(SdpaBackend, TritonBackend)):
        cache = KvCache([SHAPE], 6, 16, torch.float32, device)
        cache.keys[0].fill_(0.5)
        step = backend(cache).begin(moved)
        assert isinstance(step, RotatingAttention)
        outputs.append(step.of_heads(0, heads.clone(), cos, sin, None))
        caches.append(cache.keys[0])
    torch.testing.assert_close(*outputs, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(*caches)
    alone = split_backend(SdpaBackend, ReferenceBackend)(KvCache([SHAPE], 6, 16, torch.float32, CPU))
    assert not isinstance(alone.begin(batch), RotatingAttention)


class Captured(Decodes):
    """Decodes that graphs can capture."""

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        return lambda *arguments: torch.full((3,), len(paged))

    def launch_key(self, sequences: int, longest: int) -> Any:
        return ("key", sequences, longest)

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        return [sequences, most]


def test_decodes_are_captured_where_those_of_their_backend_are() -> None:
    cache = KvCache([SHAPE], 5, 16, torch.float32, CPU)
    backend = split_backend(Chunks, Captured)(cache)
    assert isinstance(backend, GraphBackend)
    assert backend.launch_key(4, 9) == ("key", 4, 9)
    assert backend.launch_lengths(4, 9) == [4, 9]
    assert int(backend.over([], [])(0, None, None, None)[0]) == 0  # type: ignore[arg-type]
    assert isinstance(split_backend(Chunks, TritonBackend)(cache), GraphBackend)
    assert not isinstance(split_backend(Captured, Decodes)(cache), GraphBackend)


def test_prefixes_are_shared_where_decodes_share_them() -> None:
    """Uses the protocol check of Python 3.12 and later, which a property satisfies even if it raises."""
    cache = KvCache([SHAPE], 5, 16, torch.float32, CPU)
    assert not hasattr(split_backend(Chunks, Captured)(cache), "prefixes")
    assert getattr_static(split_backend(Chunks, Captured)(cache), "prefixes", None) is None
    shared = split_backend(Chunks, TritonBackend)(cache)
    assert isinstance(shared, SharingBackend)
    assert isinstance(getattr_static(shared, "prefixes"), StepPrefixes)


def test_an_error_says_which_of_the_two_it_was() -> None:
    cache = KvCache([SHAPE], 5, 16, torch.float32, CPU)
    broken = split_backend(Chunks, made(Decodes, "broken", RuntimeError("no kernel image")))
    for rows in ([1, 4], [1, 1]):
        with pytest.raises(AttentionError, match="the attention backend broken failed with RuntimeError") as failure:
            prepare_step(broken(cache), batch_of(rows))(0, *inputs(sum(rows)))
        assert failure.value.backend == "broken"
    prepare_step(broken(cache), batch_of([4, 4]))(0, *inputs(8))
    short = split_backend(made(Chunks, "short", torch.OutOfMemoryError("full")), Decodes)
    with pytest.raises(torch.OutOfMemoryError):
        prepare_step(short(cache), batch_of([1, 4]))(0, *inputs(5))


def test_names() -> None:
    pair = split_backend(Chunks, Decodes)
    assert pair is split_backend(Chunks, Decodes)
    named = split_backend(Chunks, Decodes, "one")
    both = split_backend(named, SdpaBackend)
    assert [backend.name for backend in (pair, named, both)] == ["chunks+decodes", "one", "one+sdpa"]
    assert parts_of(both) == ("one+sdpa", "one", "chunks", "decodes", "sdpa")
    assert exclude_failed("sdpa", [both, pair, SdpaBackend, named]) == [pair, named]
    assert exclude_failed("one", [both, pair, named]) == [pair]


def test_tables_that_are_on_the_device_are_not_sent_again(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part uses its sequences' tables within those of the whole step."""
    device = torch.device(triton_device)
    caches = [KvCache([SHAPE], 9, 16, torch.float32, where) for where in (device, CPU)]
    rows, contexts, tables = [1, 5, 1, 9], [20, 30, 3, 9], [[5, 2], [1, 8], [7], [4]]
    starts = [range(context - count, context) for count, context in zip(rows, contexts, strict=True)]
    cells = [table[p // 16] * 16 + p % 16 for table, own in zip(tables, starts, strict=True) for p in own]
    batch = AttentionBatch(rows, contexts, BlockTables.of(tables), torch.tensor(cells))
    positions = torch.tensor([p for own in starts for p in own])
    for mine, theirs in zip((*caches[0].keys, *caches[0].values), (*caches[1].keys, *caches[1].values), strict=True):
        mine.copy_(theirs.normal_())
    expected = ReferenceBackend(caches[1]).begin(batch)(0, *inputs(16))
    there = rows_of(state_of(caches[0], 4, 32), 16, positions, positions, batch).inputs().batch
    assert there.block_tables.there is not None
    sizes: list[int] = []

    def noted(values: Any, device: torch.device) -> Tensor:
        sizes.append(values.size)
        return to_device(values, device)

    for sender in (module, base, step_tables):
        monkeypatch.setattr(sender, "to_device", noted)
    step = split_backend(TritonBackend, TritonBackend, "both")(caches[0]).begin(there)
    found = step(0, *(each.to(device) for each in inputs(16)))
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-4, atol=2e-4)
    assert max(sizes) < 16, "which rows, and where their tables are"


def test_a_part_that_fails_in_service_is_replaced_by_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    """Pairs with the failed backend are not tried again; the other part stays."""
    cache = KvCache([SHAPE], 5, 16, torch.float32, CPU)
    fast = made(Chunks, "fast", RuntimeError("illegal instruction"))
    other, decodes = made(Chunks, "other"), made(Decodes, "decodes")
    order = [
        split_backend(fast, decodes),
        split_backend(fast, SdpaBackend),
        fast,
        split_backend(other, decodes),
        SdpaBackend,
    ]

    def decoder(token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        return attention(0, *inputs(len(token_ids)))

    forward_pass = ForwardPass(StepParts(decoder, cache), order)  # type: ignore[arg-type]
    batch = batch_of([1, 4])
    zeros = torch.zeros(5, dtype=torch.int64)
    found = forward_pass.run(StepInputs(zeros, zeros, batch))
    expected = ReferenceBackend(KvCache([SHAPE], 5, 16, torch.float32, CPU)).begin(batch)(0, *inputs(5))
    torch.testing.assert_close(found, expected)
    assert forward_pass.fallbacks == 1
    assert [backend.name for backend in forward_pass.backends] == ["other+decodes", "sdpa"]
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith("the attention backend fast failed with RuntimeError: illegal instruction; other+")
