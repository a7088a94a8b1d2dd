"""Bidirectional attention equals a plain sum over the tokens that each token sees."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.instructions import BUILDS, Build, forced

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention.backends import bidirectional
from plimsoll_runtime.execution.attention.backends.bidirectional import BidirectionalBackend
from plimsoll_runtime.execution.attention.backends.cpu import CpuBidirectionalBackend
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables, NoAttention
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.selection import candidates
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.spec.attention import AttentionShape

CPU = torch.device("cpu")
HEADS, HEAD_DIM = 4, 8


def cache_of(*shapes: AttentionShape) -> KvCache:
    return KvCache((), 2, 16, torch.float32, CPU, whole=shapes)


def batch_of(lengths: list[int], contexts: list[int] | None = None) -> AttentionBatch:
    cells = torch.zeros(sum(lengths), dtype=torch.int64)
    return AttentionBatch(lengths, contexts or lengths, BlockTables.of([[0]] * len(lengths)), cells)


def expected(shape: AttentionShape, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the attention of one prompt, in float64."""
    repeats = shape.heads // shape.kv_heads
    q, k, v = (x.double().transpose(0, 1) for x in (query, key, value))
    scores = q @ k.repeat_interleave(repeats, 0).transpose(1, 2) * shape.scale
    if shape.window is not None:
        positions = torch.arange(len(query))
        scores = scores.masked_fill((positions[:, None] - positions).abs() >= shape.window, -torch.inf)
    return (scores.softmax(-1) @ v.repeat_interleave(repeats, 0)).transpose(0, 1)


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("window", [None, 1, 3, 50])
def test_each_token_sees_its_prompt(kv_heads: int, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bidirectional, "ROWS", 4)
    shape = AttentionShape(HEADS, kv_heads, HEAD_DIM, 0.3, window=window, whole=True)
    lengths = [1, 5, 1, 5, 11, 5, 2]
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(sum(lengths), HEADS + 2 * kv_heads, HEAD_DIM, generator=generator)
    query, key, value = torch.split(heads, [HEADS, kv_heads, kv_heads], dim=1)  # views, as in a product's output
    found = BidirectionalBackend(cache_of(shape)).begin(batch_of(lengths))(0, query, key, value)
    wanted = [
        expected(shape, *parts)
        for parts in zip(*(torch.split(each, lengths) for each in (query, key, value)), strict=True)
    ]
    assert torch.allclose(found.double(), torch.cat(wanted), atol=1e-6)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_our_kernels_do_so_too(build: Build) -> None:
    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        group, kv_heads, dims = (data.draw(st.integers(1, top)) for top in (3, 3, 4))
        window = data.draw(st.none() | st.integers(1, 200))
        lengths = data.draw(st.lists(st.integers(1, 40) | st.integers(120, 280), min_size=1, max_size=6))
        shape = AttentionShape(group * kv_heads, kv_heads, 16 * dims, 0.3, window=window, whole=True)
        # Layers share the memory, which has the keys of the layer before.
        other = replace(shape, kv_heads=kv_heads + 1, heads=kv_heads + 1, window=None)
        backend = CpuBidirectionalBackend(KvCache((), 2, 16, build.dtype, CPU, whole=(other, shape)))
        attention = backend.begin(batch_of(lengths))
        generator = torch.Generator().manual_seed(0)
        for layer, each in enumerate((other, shape)):
            sizes = [each.heads, each.kv_heads, each.kv_heads]
            heads = torch.randn(sum(lengths), sum(sizes), each.head_dim, generator=generator).to(build.dtype)
            query, key, value = torch.split(heads, sizes, dim=1)
            found = attention(layer, query, key, value)
            wanted = [
                expected(each, *parts)
                for parts in zip(*(torch.split(x, lengths) for x in (query, key, value)), strict=True)
            ]
            tolerance = 1e-5 if build.dtype == torch.float32 else 3e-2
            assert torch.allclose(found.double(), torch.cat(wanted), atol=tolerance)

    with forced(build):
        run()


@pytest.mark.parametrize("backend", [BidirectionalBackend, CpuBidirectionalBackend])
def test_half_a_prompt_is_refused(backend: type[BidirectionalBackend | CpuBidirectionalBackend]) -> None:
    made = backend(cache_of(AttentionShape(HEADS, HEADS, 16, 1.0, whole=True)))
    with pytest.raises(ValueError, match="the step lacks a part of a prompt"):
        made.begin(batch_of([2], [5]))


@pytest.mark.parametrize("shape", [{"softcap": 5.0}, {"chunk": 4}, {"sinks": True}, {"whole": False}])
def test_what_it_does_not_compute_is_refused(shape: dict[str, object]) -> None:
    made = AttentionShape(HEADS, HEADS, HEAD_DIM, 1.0, **{"whole": True, **shape})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the bidirectional backend does not support attention"):
        BidirectionalBackend(cache_of(made))


def test_it_is_chosen_for_whole_prompts_alone() -> None:
    shape = AttentionShape(HEADS, HEADS, HEAD_DIM, 1.0, whole=True)
    assert candidates("auto", Target(CPU, torch.float32, (), 16, None, (shape,))) == [BidirectionalBackend]
    wider = Target(CPU, torch.float32, (), 16, None, (replace(shape, head_dim=16),))
    assert candidates("auto", wider) == candidates("cpu", wider) == [CpuBidirectionalBackend]
    assert candidates("torch", wider) == [BidirectionalBackend]
    with pytest.raises(UsageError, match="supports only these head sizes: multiples of 16 up to 1024"):
        candidates("cpu", replace(wider, whole=(shape,)))
    with pytest.raises(UsageError, match="has no Thing"):
        candidates("cpu", replace(wider, unfused="has no Thing"))
    assert candidates("auto", Target(CPU, torch.float32, (), 16, "walks nothing")) == [NoAttention]
    with pytest.raises(UsageError, match="unknown"):
        candidates("other", Target(CPU, torch.float32, (), 16, None, (shape,)))
