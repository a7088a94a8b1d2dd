"""Layers with shared keys and values: their cache, cost and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from plimsoll_runtime.engine.kv.cache_groups import Full, SlidingWindow
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.layout import kv_layout
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.ops.attention import Attend, AttendShared
from plimsoll_runtime.models.ops.cost import OpCost, StepRows
from plimsoll_runtime.models.ops.op import Step
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.models.spec.attention import AttentionShape, SelfAttention
from plimsoll_runtime.models.spec.norm import Norm

BF16 = 2
E4B: Mapping[str, Any] = {"architectures": ["Gemma3nForCausalLM"]}
"""All sizes are Transformers' defaults."""


def program(**values: Any) -> Program:
    return program_of(describe({**E4B, **values}))


def test_keys_of_layers_that_share_are_counted_once() -> None:
    """15 of 35 layers share keys; four of five layers have a window."""
    shared, apart = program(), program(num_kv_shared_layers=0)
    each = 2 * 2 * 256 * BF16
    assert (shared.facts.token_bytes(BF16), apart.facts.token_bytes(BF16)) == (20 * each, 35 * each)
    layout = kv_layout(shared.facts.attention, 32_768, 16, BF16)
    assert layout.rules == (Full(), *[SlidingWindow(512)] * 4)
    assert layout.groups[0] == (4, 9, 14, 19)
    assert layout.block_bytes == 4 * each * 16
    cache = KvCache(shared.facts.attention, 3, 16, torch.bfloat16, torch.device("cpu"), groups=layout.groups)
    assert cache.nbytes == 3 * layout.block_bytes


def test_the_last_layers_read_those_of_the_last_one_of_their_kind() -> None:
    found = program()
    caches = [op.layer for op in found.ops if isinstance(op, Attend | AttendShared)]
    assert caches == [*range(20), *[18, 18, 18, 18, 19] * 3]
    assert [isinstance(op, AttendShared) for op in found.ops if isinstance(op, Attend | AttendShared)] == [
        *[False] * 20,
        *[True] * 15,
    ]
    assert not {
        name for name in found.stored_shapes() if "layers.20.self_attn.k" in name or "layers.34.self_attn.v" in name
    }
    assert "model.layers.20.self_attn.k_proj.weight".endswith(found.ignored), "some files have them"
    assert not "model.layers.19.self_attn.k_proj.weight".endswith(found.ignored)


def test_what_lives_through_all_layers_is_counted() -> None:
    """Counted are per-layer inputs of 35 layers and four streams."""
    found = program()
    assert found.lasting == 35 * 256 + 4 * 2048
    assert found.row_bytes(BF16) == replace(found, lasting=0).row_bytes(BF16) + found.lasting * BF16


def test_attention_to_shared_keys_writes_none() -> None:
    shape = AttentionShape(4, 2, 8, 1.0, window=4)
    rows = StepRows(2, 2, [(9, 10), (1, 2)])
    own, shared = (
        op.cost(rows, BF16) for op in (Attend(0, shape, ("a",), ("b",)), AttendShared(0, shape, ("a",), ("b",)))
    )
    # Two rows with 32 numbers of queries in and out; they read 4 and 2 tokens with 16 of keys and 16 of values.
    assert shared == OpCost((2 * 2 * 32 + 2 * 6 * 16) * BF16, 4 * 32 * 6)
    assert own.bytes - shared.bytes == 2 * 2 * 16 * BF16
    assert own.flops == shared.flops


def test_a_backend_is_asked_without_keys() -> None:
    asked = []

    def attention(
        layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        asked.append((layer, tuple(query.shape), key, value, sinks))
        return query

    shape = AttentionShape(4, 2, 8, 1.0)
    run = AttendShared(3, shape, ("a",), ("b",)).compiled(None)  # type: ignore[arg-type]
    queries = torch.randn(5, 32)
    found = run(Step(torch.zeros(5), torch.arange(5), {}, attention), queries)
    assert asked == [(3, (5, 4, 8), None, None, None)]
    assert isinstance(found, Tensor)
    assert torch.equal(found, queries)


def test_the_cpu_kernels_do_not_compute_it() -> None:
    spec = describe(
        {**E4B, "vocab_size": 64, "vocab_size_per_layer_input": 64, "num_hidden_layers": 10, "num_kv_shared_layers": 5}
    )
    assert why_not_fused(program_of(spec)) == "does not support JoinInputs"
    plain = [
        replace(layer, laurel=None, mixer=replace(layer.mixer, value_norm=None))
        for layer in spec.layers
        if isinstance(layer.mixer, SelfAttention)
    ]
    alone = replace(spec, layers=tuple(plain), inputs=None, altup=None)
    assert why_not_fused(program_of(alone)) == "does not support AttendShared"


@pytest.mark.parametrize(
    "values",
    [
        {"values_of_keys": True},
        {"gated": True, "shares": 0},
        {"gated": True, "values_of_keys": True, "value_norm": Norm(1e-6)},
    ],
)
def test_what_no_model_has_is_not_described(values: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="not supported"):
        SelfAttention(AttentionShape(4, 2, 8, 1.0), None, **values)
