"""Latent attention as ops: its cache, its cost, and equality with attention over keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_support.random_weights import reader_of
from torch import Tensor

from plimsoll_kernels.paged_attention.reference import attention_reference
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, StepPlan
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.layers.rope import RopeTable, rotate
from plimsoll_runtime.models.ops.cost import OpCost, OpKind
from plimsoll_runtime.models.ops.mla import Absorb, AttendLatent, Expand, Latent
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Step
from plimsoll_runtime.models.spec.attention import LatentAttention, RopeSpec
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.norm import Norm

NORM = Norm(1e-6)
LATENT = LatentAttention(
    heads=4, rank=20, plain=12, value=10, rope=RopeSpec(8, 1e4, pairs=True), scale=0.2, norm=NORM, query_rank=14
)
SPEC = DecoderSpec("test", 100, 16, (LayerSpec(LATENT, GatedMlp(24), NORM),) * 3, 64, NORM)
BF16 = 2
CPU = torch.device("cpu")


def test_one_vector_a_token_is_kept() -> None:
    facts = program_of(SPEC).facts
    assert facts.token_bytes(BF16) == 3 * (20 + 8) * BF16
    assert [(shape.kv_heads, shape.head_dim, shape.latent) for shape in facts.attention] == [(1, 28, True)] * 3


def test_a_decode_by_hand() -> None:
    """One row after nine tokens, three layers, bfloat16; the up projection is read once."""
    costs = program_of(SPEC).step_cost(StepPlan([ScheduledSequence(0, 9, [0], (), True)]), BF16)
    width, read = 28, 10
    attended = (4 * (width + 20) + (1 + read) * width) * BF16
    assert costs[OpKind.ATTENTION] == OpCost(3 * attended, 3 * 2 * 4 * (width + 20) * read)
    products = 16 * 28 + 16 * 14 + 14 * 4 * 20 + 4 * 12 * 20
    passed = (16 + 28) + (16 + 14) + (14 + 4 * 20) + 4 * (12 + 20 + 2 * 8)
    flops = 2 * products + 4 * 8 * 3
    assert costs[OpKind.QKV] == OpCost(3 * (products + passed) * BF16, 3 * flops)
    output = 4 * 10 * 20 + 4 * 10 * 16
    passed = 4 * (20 + 10) + 4 * 10 + 16
    assert costs[OpKind.OUTPUT] == OpCost(3 * (output + passed) * BF16, 3 * 2 * output)


@pytest.mark.parametrize("pairs", [False, True])
def test_it_is_attention_over_keys_and_values_of_each_head(pairs: bool) -> None:
    """The reference computes keys and values explicitly."""
    own = replace(LATENT, rope=replace(LATENT.rope, pairs=pairs))
    program = program_of(replace(SPEC, layers=(replace(SPEC.layers[0], mixer=own),)))
    reader = reader_of(program, torch.float32)
    ops = program.ops
    latent = next(op for op in ops if isinstance(op, Latent))
    absorb = next(op for op in ops if isinstance(op, Absorb))
    attend = next(op for op in ops if isinstance(op, AttendLatent))
    expand = next(op for op in ops if isinstance(op, Expand))
    positions = torch.arange(7)
    cos, sin = RopeTable(own.rope, CPU)(positions, torch.float32)
    step = Step(positions, positions, {own.rope: (cos, sin)}, dense)
    torch.manual_seed(0)
    vectors, queries = torch.randn(7, 28), torch.randn(7, 4 * 20)

    kept = latent.compiled(reader)(step, vectors)
    found = expand.compiled(reader)(step, attend.compiled(reader)(step, absorb.compiled(reader)(step, queries), kept))

    assert isinstance(kept, Tensor)
    plain, turning = torch.split(kept, [20, 8], dim=1)
    assert torch.equal(turning, rotate(vectors[:, None, 20:], cos, sin, pairs=pairs)[:, 0])
    up = reader.read(expand.up).view(4, 22, 20)
    made = torch.einsum("hor,tr->hto", up, plain)
    keys = torch.cat([made[..., :12], turning.expand(4, -1, -1)], dim=-1)
    each = queries.view(7, 4, 20)
    whole = torch.cat([each[..., :12], rotate(each[..., 12:], cos, sin, pairs=pairs)], dim=-1)
    scores = torch.einsum("thd,hsd->hts", whole, keys) * own.scale
    weights = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1)
    expected = torch.einsum("hts,hsv->thv", weights, made[..., 12:]).flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def dense(layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None) -> Tensor:
    assert key is not None
    assert value is not None
    return attention_reference(query, key.transpose(0, 1), value.transpose(0, 1), scale=LATENT.scale)


def test_the_cpu_kernels_compute_it() -> None:
    assert why_not_fused(program_of(SPEC)) is None


def test_vectors_that_others_read_as_well_are_refused() -> None:
    """The kernels write latent vectors only to the cache, where other ops cannot read them."""
    program = program_of(SPEC)
    at = next(i for i, op in enumerate(program.ops) if isinstance(op, AttendLatent))
    again = Normalise(NORM, 8, ("latent",), ("other",), None)
    read = replace(program, ops=(*program.ops[: at + 1], again, *program.ops[at + 1 :]))
    assert why_not_fused(read) == "supports latent vectors only with exactly one attention op as reader"
