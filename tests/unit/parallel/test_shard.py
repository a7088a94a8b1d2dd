"""Ranks with parts of a program compute what one rank with the whole program does."""

from __future__ import annotations

import re

import pytest
import torch
from model_support.forward import hidden_states
from model_support.random_weights import RandomWeights, reading
from model_support.tiny import prompts
from parallel_support.models import MODELS, Model
from parallel_support.ranks import on_ranks
from torch import Tensor

from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.layers.collectives import Collectives
from plimsoll_runtime.models.ops.matmul import Product
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.program import Program, summary
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.shard import shard

PROMPT = prompts((40,))[0]
"""Longer than each window (16) below."""
CHUNK = 23
TOLERANCE = 2e-4
WHOLE = [name for name, model in MODELS.items() if model.refused is None]


def logits_of(program: Program, weights: RandomWeights, collectives: Collectives | None = None) -> Tensor:
    decoder = TorchDecoder(program, reading(program, weights, torch.float32), collectives)
    states = hidden_states(decoder, ReferenceBackend, PROMPT, CHUNK)
    return states if collectives is not None else decoder.logits(states)


def of_ranks(whole: Program, weights: RandomWeights, ranks: int) -> list[Tensor]:
    """Return the final hidden states of each rank."""
    return list(
        on_ranks(ranks, lambda group, rank: logits_of(shard(whole, ranks, rank), weights, CountedCollectives(group)))
    )


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", WHOLE)
def test_ranks_compute_what_one_rank_does(name: str, ranks: int) -> None:
    whole = MODELS[name].program()
    weights = RandomWeights(whole)
    decoder = TorchDecoder(whole, reading(whole, weights, torch.float32))
    expected = hidden_states(decoder, ReferenceBackend, PROMPT, CHUNK)
    first, *others = of_ranks(whole, weights, ranks)
    assert torch.allclose(first, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("name", WHOLE)
def test_parts_make_up_the_whole(name: str) -> None:
    whole = MODELS[name].program()
    parts = [shard(whole, 2, rank) for rank in range(2)]
    for part in parts:
        assert part.stored_shapes() == whole.stored_shapes()
        assert len(part.layers) == len(whole.layers)
        assert sum(isinstance(op, Reduce) for op in part.ops) >= len(whole.layers) - 1
    matrices = [op for op in whole.ops if isinstance(op, Product)]
    assert matrices
    alone = sum(part.weight_bytes(torch.float32) for part in parts)
    assert alone < 2 * whole.weight_bytes(torch.float32)


def test_a_refusal_names_the_op() -> None:
    for model in MODELS.values():
        if model.refused is not None:
            with pytest.raises(ModelError, match=model.refused) as refusal:
                shard(model.program(), 2, 0)
            assert re.search("--tensor-parallel 1|but into stages", str(refusal.value))


def test_more_ranks_than_heads() -> None:
    with pytest.raises(UsageError, match=r"--tensor-parallel 5: LlamaForCausalLM has 4 query heads, .* at most 4"):
        shard(MODELS["llama"].program(), 5, 0)
    with pytest.raises(UsageError, match=r"--tensor-parallel 4: .* has 3 columns of an MLP, .* at most 3"):
        shard(Model("LlamaConfig", {"intermediate_size": 3}).program(), 4, 0)


def test_a_ranks_facts_are_those_of_its_part() -> None:
    whole = MODELS["qwen2-14-heads"].program()
    shapes = [shard(whole, 4, rank).facts.attention[0] for rank in range(4)]
    assert [(shape.heads, shape.kv_heads) for shape in shapes] == [(4, 1), (3, 1), (4, 1), (3, 1)]
    text = summary(shard(whole, 4, 1))
    assert "reduce(added, ranks=4)" in text
    assert "logits: on rank 0" in text
