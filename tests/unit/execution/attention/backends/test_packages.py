"""Backends of third-party kernels, in packages or in torch itself, get the arguments that they expect.

If a package and a GPU are available, they run. Otherwise a fake computes in plain torch what the package's
documentation says of each argument, so that a wrong table, window or page is detected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend
from torch.nn.attention import varlen as torch_varlen

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_kernels.paged_attention.reference import attention_reference
from plimsoll_runtime.execution.attention import cache_backend
from plimsoll_runtime.execution.attention import paged as pages_module
from plimsoll_runtime.execution.attention.backends import torch_flash
from plimsoll_runtime.execution.attention.backends.cudnn import CudnnPagedBackend, CudnnPagedChunks
from plimsoll_runtime.execution.attention.backends.flash_attn import FlashAttn3Backend, FlashAttnBackend
from plimsoll_runtime.execution.attention.backends.flashinfer import FlashInferBackend
from plimsoll_runtime.execution.attention.backends.torch_flash import TorchFlashBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
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


def with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> Tensor:
    """flash_attn_interface.flash_attn_with_kvcache over pages, with contiguous rows of several sequences."""
    starts = torch.zeros(len(cache_seqlens) + 1, dtype=torch.int32)
    starts[1:] = cache_seqlens.cumsum(0)
    return varlen(
        q,
        k_cache,
        v_cache,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=starts,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=int(cache_seqlens.max()),
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        block_table=page_table,
    )


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
) -> Tensor:
    """torch.nn.attention.varlen.varlen_attn, with the diagonal at the last row.

    Over contiguous keys [K, kv_heads, D]; or, for cuDNN, over pages and without windows.
    """
    assert type(window_size) is tuple, "torch 2.11 compares it with one"
    assert enable_gqa == (query.shape[1] != key.shape[-2])
    assert query.is_contiguous()
    if block_table is not None:
        assert seqused_k is not None
        assert cu_seq_k is None
        assert torch._C._get_cudnn_sdp_enabled()
        assert not torch._C._get_flash_sdp_enabled()
        assert window_size == (-1, 0)
        assert int(cu_seq_q.diff().min()) > 1, "decodes are not for cuDNN"
        pages, contexts = block_table, seqused_k
    else:
        assert cu_seq_k is not None
        assert torch._C._get_flash_sdp_enabled()
        assert not torch._C._get_cudnn_sdp_enabled()
        assert int(cu_seq_k[-1]) == len(key) == len(value)
        assert key.stride(-1) == value.stride(-1) == 1
        # Pages of one token, which are the tokens themselves.
        pages, contexts = cu_seq_k[:-1, None] + torch.arange(max_k, dtype=torch.int32), cu_seq_k.diff()
        pages, key, value = pages.clamp(max=len(key) - 1), key[:, None], value[:, None]
    return with_kvcache(
        query,
        key,
        value,
        cache_seqlens=contexts,
        page_table=pages,
        cu_seqlens_q=cu_seq_q,
        max_seqlen_q=max_q,
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1) if window_size == (-1, 0) else window_size,
        softcap=0.0,
    )


def varlen_attn_of_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
) -> Tensor:
    """varlen_attn without an argument for heads that share keys."""
    grouped = query.shape[1] != key.shape[1]
    return varlen_attn(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        scale=scale,
        window_size=window_size,
        enable_gqa=grouped,
    )


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
        ("flash_attn_interface", "flash_attn_with_kvcache", with_kvcache),
    ):
        module = ModuleType(name)
        setattr(module, attribute, value)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.matrix(2)
@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("backend", [FlashInferBackend, FlashAttnBackend, FlashAttn3Backend])
def test_with_a_stand_in(simulation: Simulate, backend: type[AttentionBackend], block_size: int) -> None:
    steps(simulation(backend, SHAPES, torch.float32, block_size, 60))


UNCAPPED = [SHAPES[0], replace(SHAPES[1], softcap=None), replace(SHAPES[0], kv_heads=4)]


@pytest.mark.matrix(3)
@pytest.mark.parametrize("stand_in", [varlen_attn, varlen_attn_of_2_11])
@pytest.mark.parametrize("tokens", [1, 40, 65_536])
@pytest.mark.parametrize("block_size", [8, 16, 256])
def test_flash_attention_of_torch(
    simulation: Simulate, monkeypatch: pytest.MonkeyPatch, stand_in: Any, tokens: int, block_size: int
) -> None:
    """Gathers some sequences at a time, also with a window."""
    monkeypatch.setattr(torch_varlen, "varlen_attn", stand_in)
    monkeypatch.setattr(torch_flash, "TOKENS", tokens)
    steps(simulation(TorchFlashBackend, UNCAPPED, torch.float32, block_size, 60))


@pytest.mark.parametrize("block_size", [16, 256])
def test_pages_of_cudnn(simulation: Simulate, monkeypatch: pytest.MonkeyPatch, block_size: int) -> None:
    monkeypatch.setattr(torch_varlen, "varlen_attn", varlen_attn)
    shapes = [replace(shape, window=None) for shape in UNCAPPED]
    steps(simulation(CudnnPagedBackend, shapes, torch.float32, block_size, 60))


@pytest.mark.parametrize("backend", [CudnnPagedChunks, TorchFlashBackend])
def test_torch_takes_what_it_is_given(backend: type[AttentionBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls torch's own function on tensors without values, with its cuDNN rules for a Hopper."""
    monkeypatch.setattr(torch_varlen, "_cudnn_version_and_major_capability", lambda index: (92600, 9))
    monkeypatch.setattr(torch_varlen, "_should_use_cudnn", lambda index: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    chosen: list[int] = []
    real = torch_varlen._select_backend

    def select(*given: Any) -> int:
        chosen.append(real(*given))
        return chosen[-1]

    monkeypatch.setattr(torch_varlen, "_select_backend", select)
    with FakeTensorMode(allow_non_fake_inputs=True):
        device = torch.device("cuda:0")
        pages = torch.empty(9, 2 * 2 * 16 * 64, device=device, dtype=torch.bfloat16)
        keys = pages.as_strided((2, 9, 16, 64), (2 * 16 * 64, 2 * 2 * 16 * 64, 64, 1))
        numbers = torch.empty(3, device=device, dtype=torch.int32)
        tables = PagedBatch(numbers, numbers[:2], torch.empty(2, 4, device=device, dtype=torch.int32), 20, 50, 0)
        cache = SimpleNamespace(keys=[keys], values=[keys], shapes=SHAPES[:1], group_of=(0,), block_size=16)
        query = torch.empty(40, 4, 64, device=device, dtype=torch.bfloat16)
        places = torch.empty(90, device=device, dtype=torch.int64)
        call = torch_flash._Call(slice(0, 40), places, places, numbers, numbers.clone(), 20, 50)
        monkeypatch.setattr(pages_module, "paged_batch", lambda group, cache: tables)
        monkeypatch.setattr(cache_backend, "step_tables", lambda group, size: None)
        monkeypatch.setattr(TorchFlashBackend, "calls", lambda *given: [call])
        step = backend(cache).begin(SimpleNamespace(groups=[None]))  # type: ignore[arg-type]
        out = step(0, query, None, None)
    assert (out.shape, out.dtype) == (query.shape, query.dtype)
    expected = SDPBackend.CUDNN_ATTENTION if backend is CudnnPagedChunks else SDPBackend.FLASH_ATTENTION
    assert chosen == [expected.value]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["flashinfer", "flash-attn", "flash-attn-3", "cudnn-paged", "cudnn", "torch-flash"])
def test_with_the_package(simulation: Simulate, name: str, dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    shapes = [SHAPES[0], replace(SHAPES[1], head_dim=64)]
    if name.startswith(("cudnn", "torch")):
        shapes = [replace(shape, softcap=None, window=None) for shape in shapes]
    target = Target(torch.device("cuda"), dtype, shapes, 256)
    if reason := BACKENDS[name].capabilities.refusal(target):
        pytest.skip(f"{name} {reason}")
    steps(simulation(BACKENDS[name], shapes, dtype, 256, 20, device="cuda"))
