"""Ranks with parts of a program compute what one rank with the whole program does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from model_support.forward import hidden_states
from model_support.random_weights import RandomWeights, reading
from model_support.tiny import prompts
from parallel_support.models import GPT, MODELS, WINDOW, Model
from parallel_support.ranks import ThreadCollectives, on_ranks
from torch import Tensor

from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.layers.collectives import Collectives
from plimsoll_runtime.models.ops.logits import Logits, NoLogits
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


WORDS = 1700
"""Four groups of 512 tokens, the last of them with 164."""
CUT: Mapping[str, Model] = {
    "llama-untied": Model("LlamaConfig", {"vocab_size": WORDS}),
    "llama-tied": Model("LlamaConfig", {"vocab_size": WORDS, "tie_word_embeddings": True}),
    "gemma2-softcap": Model("Gemma2Config", {**WINDOW, "vocab_size": WORDS, "final_logit_softcapping": 5.0}),
    "cohere-scale": Model("CohereConfig", {"vocab_size": WORDS, "logit_scale": 0.5}),
    "phi-bias": Model("PhiConfig", {"vocab_size": WORDS}),
    "gpt2-positions": Model("GPT2Config", {**GPT, "vocab_size": WORDS}),
    "bloom-norm": Model("BloomConfig", {"n_layer": 2, "n_head": 6, "vocab_size": WORDS}),
}
SPREAD = prompts((40,), vocab=WORDS)[0]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", CUT)
def test_parts_of_the_vocabulary_have_the_logits_of_the_whole(name: str, ranks: int) -> None:
    whole = CUT[name].program()
    weights = RandomWeights(whole)
    alone = TorchDecoder(whole, reading(whole, weights, torch.float32))
    expected = alone.logits(hidden_states(alone, ReferenceBackend, SPREAD, CHUNK))

    def of_rank(group: ThreadCollectives, rank: int) -> Tensor:
        part = shard(whole, ranks, rank)
        decoder = TorchDecoder(part, reading(part, weights, torch.float32), CountedCollectives(group))
        return decoder.logits(hidden_states(decoder, ReferenceBackend, SPREAD, CHUNK))

    found = torch.cat(list(on_ranks(ranks, of_rank)), dim=1)
    assert torch.allclose(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", CUT)
def test_each_rank_has_its_part_of_embedding_and_output_layer(name: str) -> None:
    whole = CUT[name].program()
    parts = [shard(whole, 3, rank) for rank in range(3)]
    heads = [part.head for part in parts]
    assert all(isinstance(head, Logits) for head in heads)
    assert [head.part for head in heads if isinstance(head, Logits)] == [(0, 1024), (1024, 1536), (1536, WORDS)]
    hidden = whole.facts.hidden_size
    tables = 1 if whole.tied is not None else 2
    for part, rows in zip(parts, [1024, 512, 164], strict=True):
        others = replace(part, ops=part.ops[2:], head=NoLogits(hidden)).weight_bytes(torch.float32)
        vectors = sum(4 * rows for weight in part.head.weights() if weight.is_vector)
        assert part.weight_bytes(torch.float32) == others + tables * 4 * rows * hidden + vectors
        assert part.logits_bytes(4) == whole.logits_bytes(4) * rows // WORDS
        assert part.stored_shapes() == whole.stored_shapes()
    assert "logits = logits(hidden, " in str(parts[1])
    assert "of tokens 1024 to 1535" in str(parts[1])


def test_a_vocabulary_with_fewer_groups_of_tokens_than_ranks_stays_whole() -> None:
    whole = Model("LlamaConfig", {"vocab_size": 1025}).program()
    assert [type(shard(whole, 4, rank).head) for rank in range(4)] == [Logits, *[NoLogits] * 3]
    assert [type(shard(whole, 3, rank).head) for rank in range(3)] == [Logits] * 3


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
    assert "logits: on other ranks" in text
