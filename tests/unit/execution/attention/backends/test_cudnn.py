"""cuDNN's attention in parts: a chunk's own tokens and its prefix, joined as if they were one.

torch's FlashAttention for CPUs replaces cuDNN's op: it takes the same arguments and returns sums as well. Tensors
without values show that torch accepts the call for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from plimsoll_runtime.execution.attention.backends import cudnn as module
from plimsoll_runtime.execution.attention.backends.cudnn import CudnnBackend, CudnnChunks, cudnn_attention
from plimsoll_runtime.models.spec.attention import AttentionShape

Simulate = Callable[..., Any]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def shape(heads: int, kv_heads: int, head_dim: int) -> AttentionShape:
    return AttentionShape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5)


def on_a_cpu(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Raise an error for calls that cuDNN would refuse: masks of unequal lengths have another meaning there."""
    assert not causal or query.shape[2] == key.shape[2]
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
    return found[0], found[1]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cudnn_attention", on_a_cpu)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 256])
@pytest.mark.parametrize("pieces", [24, 8192])
def test_prompts_chunks_and_decodes(
    simulation: Simulate, dtype: torch.dtype, block_size: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PREFIX_TOKENS", pieces)
    run = simulation(CudnnBackend, [shape(4, 2, 16), shape(3, 3, 64), shape(8, 1, 32)], dtype, block_size, 60)
    a, b, c = (run.add() for _ in range(3))
    run.step({a: 21, b: 2})
    run.step({b: 1, a: 40, c: 30})
    run.step({c: 37, a: 1, b: 17})
    run.step({a: 1, b: 1, c: 1})


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.dictionaries(st.integers(0, 4), st.integers(2, 90), min_size=1), min_size=1, max_size=4),
    st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    st.sampled_from([4, 16, 64]),
    st.integers(1, 100),
)
def test_any_chunks(
    simulation_class: Simulate,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[dict[int, int]],
    heads: tuple[int, int],
    block_size: int,
    pieces: int,
) -> None:
    monkeypatch.setattr(module, "PREFIX_TOKENS", pieces)
    run = simulation_class(CudnnChunks, [shape(*heads, 16)], torch.float32, block_size, 600)
    for _ in range(5):
        run.add()
    for rows in steps:
        run.step(rows)


def test_the_op_is_one_that_torch_has() -> None:
    """Calls the op with heads that share keys, rows as in a product's output, and keys that are part of a gathered
    copy.
    """
    with FakeTensorMode():
        query = torch.empty(70, 32, 128, device="cuda", dtype=torch.bfloat16).transpose(0, 1)[None]
        key = torch.empty(1, 8, 128, 128, device="cuda", dtype=torch.bfloat16)[:, :, 3:103]
        out, sums = cudnn_attention(query, key, key, causal=False, scale=0.1)
    assert (out.shape, out.dtype) == (query.shape, query.dtype)
    assert (sums.shape, sums.dtype) == (query.shape[:3], torch.float32)
