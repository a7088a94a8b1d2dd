"""Backends of other people's packages: what we tell them means what we mean.

Where a package and a GPU are there, they run; everywhere else a stand-in does with plain torch what the package's
documentation says of each argument, so that a table, a window or a page that is off by one shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from plimsoll_kernels.paged_attention.reference import attention_reference
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.catalogue import ENTRIES, Target
from plimsoll_runtime.execution.attention.flash_attn import FlashAttnBackend
from plimsoll_runtime.execution.attention.flashinfer import FlashInferBackend
from plimsoll_runtime.models.spec.attention import AttentionShape

Simulate = Callable[..., Any]
SHAPES = [
    AttentionShape(heads=4, kv_heads=2, head_dim=64, scale=0.1),
    AttentionShape(heads=6, kv_heads=1, head_dim=128, scale=0.09, window=11, softcap=6.0),
]


class PagedWrapper:
    """flashinfer.BatchPrefillWithPagedKVCacheWrapper, for "HND" pages and causal masks."""

    def __init__(self, workspace: Tensor, kv_layout: str) -> None:
        assert (workspace.dtype, kv_layout) == (torch.uint8, "HND")

    def plan(self, **plan: Any) -> None:
        names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        assert all(plan[name].dtype is torch.int32 for name in names)
        self._tables = [plan.pop(name).tolist() for name in names]
        self._plan = plan

    def run(self, query: Tensor, pages: tuple[Tensor, Tensor]) -> Tensor:
        plan, (rows, firsts, indices, last) = self._plan, self._tables
        size = plan["page_size"]
        assert plan["causal"]
        assert query.shape[1:] == (plan["num_qo_heads"], plan["head_dim_qk"])
        assert all(p.shape[1:] == (plan["num_kv_heads"], size, plan["head_dim_qk"]) for p in pages)
        assert query.dtype == plan["q_data_type"] == plan["kv_data_type"] == pages[0].dtype
        window = None if plan["window_left"] < 0 else plan["window_left"] + 1
        out = []
        for i, length in enumerate(last):
            own = indices[firsts[i] : firsts[i + 1]]
            tokens = (len(own) - 1) * size + length
            key, value = (p[own].transpose(0, 1).flatten(1, 2)[:, :tokens] for p in pages)
            options: dict[str, Any] = {"scale": plan["sm_scale"], "window": window, "softcap": plan["logits_soft_cap"]}
            out.append(attention_reference(query[rows[i] : rows[i + 1]], key, value, **options))
        return torch.cat(out)


def varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    block_table: Tensor,
) -> Tensor:
    """flash_attn.flash_attn_varlen_func over pages [blocks, block, kv_heads, D]."""
    assert causal
    assert {t.dtype for t in (cu_seqlens_q, cu_seqlens_k, block_table)} == {torch.int32}
    rows, contexts = cu_seqlens_q.tolist(), cu_seqlens_k.diff().tolist()
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    assert max_seqlen_k == max(contexts)
    assert window_size == (-1, -1) or window_size[1] == 0
    window = None if window_size[0] < 0 else window_size[0] + 1
    out = []
    for i, context in enumerate(contexts):
        keys, values = (p[block_table[i]].flatten(0, 1)[:context].transpose(0, 1) for p in (key, value))
        options: dict[str, Any] = {"scale": softmax_scale, "window": window, "softcap": softcap or None}
        out.append(attention_reference(query[rows[i] : rows[i + 1]], keys, values, **options))
    return torch.cat(out)


def steps(run: Any) -> None:
    a, b, c = (run.add() for _ in range(3))
    run.step({a: 21, b: 1})
    run.step({b: 1, a: 1, c: 30})
    run.step({c: 300, a: 1})
    run.step({a: 1, b: 1, c: 1})


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, attribute, value in (
        ("flashinfer", "BatchPrefillWithPagedKVCacheWrapper", PagedWrapper),
        ("flash_attn", "flash_attn_varlen_func", varlen),
    ):
        module = ModuleType(name)
        setattr(module, attribute, value)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("backend", [FlashInferBackend, FlashAttnBackend])
def test_with_a_stand_in(simulation: Simulate, backend: type[AttentionBackend], block_size: int) -> None:
    steps(simulation(backend, SHAPES, torch.float32, block_size, 60))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["flashinfer", "flash-attn"])
def test_with_the_package(simulation: Simulate, name: str, dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    shapes = [SHAPES[0], replace(SHAPES[1], head_dim=64)]
    target = Target(torch.device("cuda"), dtype, shapes, 256)
    if reason := ENTRIES[name].why_not(target):
        pytest.skip(f"{name} {reason}")
    steps(simulation(ENTRIES[name].load(), shapes, dtype, 256, 20, device="cuda"))
