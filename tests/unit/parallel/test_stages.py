"""Stages are balanced, have each op once, and compute together the bits of the whole program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from model_support.forward import BLOCK, hidden_states
from model_support.random_weights import RandomWeights, reading
from model_support.tiny import prompts
from parallel_support.models import MODELS, WINDOW, Model
from parallel_support.ranks import JoinedRank, on_layout
from torch import Tensor

from plimsoll_kernels.cpu.library import library
from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.attention.selection import select
from plimsoll_runtime.models.cpu_executor.decoder import CpuExecutor
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.ops.attention import Attend, AttendShared
from plimsoll_runtime.models.ops.cost import OpCost, StepRows
from plimsoll_runtime.models.ops.logits import NoLogits
from plimsoll_runtime.models.ops.mla import AttendLatent
from plimsoll_runtime.models.ops.op import Op, Stateful
from plimsoll_runtime.models.ops.stage import Receive, Send
from plimsoll_runtime.models.program import Program, summary
from plimsoll_runtime.parallel import stages as stages_module
from plimsoll_runtime.parallel.layout import Layout
from plimsoll_runtime.parallel.member import CountedCollectives
from plimsoll_runtime.parallel.rank import part_of
from plimsoll_runtime.parallel.shard import shard
from plimsoll_runtime.parallel.stages import borders_of, stage_of

PROMPT = prompts((40,))[0]
CHUNK = 23
TOLERANCE = 2e-4
GEMMA3N: Mapping[str, Any] = {
    **WINDOW,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 20,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
    "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0, 0.0, 0.0],
}
HYBRID: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
ALL: Mapping[str, Model] = {
    **MODELS,
    "llama-6-layers": Model("LlamaConfig", {"num_hidden_layers": 6}),
    "llama-tied": Model("LlamaConfig", {"num_hidden_layers": 3, "tie_word_embeddings": True}),
    "gemma3n-shared": Model("Gemma3nTextConfig", GEMMA3N),
    "gemma3n-three-streams": Model("Gemma3nTextConfig", {**GEMMA3N, "altup_num_inputs": 3, "altup_active_idx": 1}),
    "gemma4-inputs": Model(
        "Gemma4TextConfig",
        {
            **WINDOW,
            "global_head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "vocab_size_per_layer_input": 20,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 0,
        },
    ),
    "gemma2": Model("Gemma2Config", WINDOW),
    "qwen3-next-hybrid": Model("Qwen3NextConfig", {**HYBRID, "num_experts": 4, "num_experts_per_tok": 2}),
}


def most_stages(whole: Program) -> int:
    """Return the largest number of stages that a program can be divided into, by the advice of a refusal."""
    with pytest.raises(UsageError) as refusal:
        borders_of(whole, 99)
    return int(str(refusal.value).rpartition(" ")[2])


def divided(whole: Program, stages: int) -> list[Program]:
    borders = borders_of(whole, stages)
    return [stage_of(whole, borders, stage) for stage in range(stages)]


def numbers(name: str) -> range:
    """Return the numbers of stages, 2 to 4, that a model can be divided into."""
    return range(2, min(4, most_stages(ALL[name].program())) + 1)


# Borders


def time_of(cost: OpCost) -> int:
    return max(cost.bytes * stages_module.FLOPS_PER_BYTE, cost.flops)


def slowest(program: Program, borders: Sequence[int]) -> int:
    """Return the predicted time of the slowest stage: of decodes and the first tokens of a prompt."""
    spans = [(stages_module.CONTEXT - 1, stages_module.CONTEXT)] * stages_module.DECODES
    rows = StepRows(
        stages_module.DECODES + stages_module.PROMPT, stages_module.DECODES, [*spans, (0, stages_module.PROMPT)]
    )
    found = []
    for begin, end in pairwise(borders):
        first = program.layers[begin] if begin else 0
        last = program.layers[end] if end < len(program.layers) - 1 else len(program.ops)
        found.append(sum(time_of(op.cost(rows, stages_module.BYTES)) for op in program.ops[first:last]))
    found[-1] += time_of(program.head.cost(rows, stages_module.BYTES))
    return max(found)


def kinds_of(ops: Sequence[Op]) -> set[str]:
    """Return what ops keep of a sequence."""
    found = {"cache" for op in ops if isinstance(op, Attend | AttendLatent)}
    return found | {"state" for op in ops if isinstance(op, Stateful)}


def is_valid(program: Program, borders: Sequence[int]) -> bool:
    """Return whether no stage reads the cache of another one, and each keeps something of each kind."""
    kinds = kinds_of(program.ops)
    for begin, end in pairwise(borders):
        ops = program.ops[program.layers[begin] : program.layers[end]]
        own = {op.layer for op in ops if isinstance(op, Attend)}
        if any(isinstance(op, AttendShared) and op.layer not in own for op in ops) or kinds_of(ops) != kinds:
            return False
    return True


WIDE: Mapping[str, Model] = {
    "wide-head": Model("LlamaConfig", {"num_hidden_layers": 7, "vocab_size": 20_000}),
    "wide-mlps": Model("LlamaConfig", {"num_hidden_layers": 7, "intermediate_size": 4000}),
    "windows": Model("Gemma3TextConfig", {**WINDOW, "num_hidden_layers": 8}),
    "shared": Model(
        "Gemma3nTextConfig",
        {
            **GEMMA3N,
            "num_hidden_layers": 9,
            "layer_types": [*["sliding_attention", "sliding_attention", "full_attention"] * 3],
            "activation_sparsity_pattern": [0.0] * 9,
        },
    ),
    "hybrid": Model(
        "Qwen3NextConfig",
        {
            **HYBRID,
            "num_hidden_layers": 7,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": [
                "linear_attention",
                "linear_attention",
                "full_attention",
                *["linear_attention", "full_attention"] * 2,
            ],
        },
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_the_slowest_stage_is_as_fast_as_any_division_allows(name: str) -> None:
    program = WIDE[name].program()
    layers = len(program.layers) - 1
    possible = 0
    for stages in range(1, layers + 2):
        cuts = [(0, *each, layers) for each in combinations(range(1, layers), stages - 1)]
        valid = [borders for borders in cuts if is_valid(program, borders)]
        if valid:
            found = borders_of(program, stages)
            assert found in valid
            assert slowest(program, found) == min(slowest(program, borders) for borders in valid)
            possible = stages
        else:
            with pytest.raises(UsageError, match=rf"--pipeline-parallel {stages}: .* use at most {possible}$"):
                borders_of(program, stages)


def test_a_heavy_output_layer_takes_layers_from_the_last_stage() -> None:
    alike = borders_of(Model("LlamaConfig", {"num_hidden_layers": 8, "vocab_size": 40}).program(), 2)
    heavy = borders_of(Model("LlamaConfig", {"num_hidden_layers": 8, "vocab_size": 20_000}).program(), 2)
    assert alike == (0, 4, 8)
    assert heavy[1] > 4


def test_more_stages_than_layers() -> None:
    program = ALL["llama-6-layers"].program()
    assert borders_of(program, 6) == tuple(range(7))
    with pytest.raises(UsageError, match=r"--pipeline-parallel 7: LlamaForCausalLM has 6 layers, .* use at most 6$"):
        borders_of(program, 7)


@pytest.mark.parametrize("name", ["gemma3n-shared", "gemma3n-three-streams", "gemma4-values-of-keys"])
def test_layers_that_share_a_cache_stay_together(name: str) -> None:
    whole = ALL[name].program()
    assert any(isinstance(op, AttendShared) for op in whole.ops)
    for stages in range(1, most_stages(whole) + 1):
        assert is_valid(whole, borders_of(whole, stages))
    with pytest.raises(UsageError, match="share a cache"):
        borders_of(whole, len(whole.layers) - 1)


# Programs


def restored(parts: Sequence[Program]) -> list[Op]:
    """Return the ops of all stages in order, with the numbers of caches and states in the whole program."""
    found: list[Op] = []
    caches = states = 0
    for part in parts:
        for op in part.ops:
            if isinstance(op, Attend | AttendLatent | AttendShared):
                found.append(replace(op, layer=op.layer + caches))
            elif isinstance(op, Stateful):
                found.append(replace(op, state=op.state + states))  # type: ignore[type-var]
            elif not isinstance(op, Receive | Send):
                found.append(op)
        caches += len(part.facts.attention)
        states += len(part.facts.states)
    return found


def names_of(program: Program) -> set[str]:
    """Return the weights that a program reads."""
    ops = {str(weight) for op in program.ops for weight in op.weights()}
    return ops | {str(weight) for weight in program.head.weights()}


@pytest.mark.parametrize("name", ALL)
def test_stages_have_each_op_and_each_weight_once(name: str) -> None:
    whole = ALL[name].program()
    for stages in numbers(name):
        parts = divided(whole, stages)
        assert restored(parts) == list(whole.ops)
        assert [shape for part in parts for shape in part.facts.attention] == list(whole.facts.attention)
        assert [state for part in parts for state in part.facts.states] == list(whole.facts.states)
        assert set().union(*map(names_of, parts)) == names_of(whole)
        twice = [one & other for one, other in combinations(map(names_of, parts), 2)]
        tied = set() if whole.tied is None else {str(weight) for weight in whole.head.weights()}
        assert set().union(*twice) <= tied
        for number, part in enumerate(parts):
            assert part.stored_shapes() == whole.stored_shapes()
            assert part.facts.stages == tuple(each.facts.attention for each in parts)
            assert part.facts.stage == number
            assert isinstance(part.ops[0], Receive) == (number > 0)
            assert isinstance(part.ops[-1], Send) == (number < stages - 1)
            assert isinstance(part.head, NoLogits) == (number < stages - 1)
        for one, after in pairwise(parts):
            send, receive = one.ops[-1], after.ops[0]
            assert isinstance(send, Send)
            assert isinstance(receive, Receive)
            assert (send.reads, send.widths) == (receive.writes, receive.widths)


@pytest.mark.parametrize("name", ALL)
def test_layers_have_their_numbers_in_the_whole_model(name: str) -> None:
    whole = ALL[name].program()
    layers = [whole.ops[first:end] for first, end in pairwise(whole.layers)]
    for stages in numbers(name):
        for part in divided(whole, stages):
            own = [part.ops[first:end] for first, end in pairwise(part.layers)]
            for number, ops in enumerate(own, part.first_layer):
                assert [type(op) for op in ops] == [type(op) for op in layers[number]]
                assert [op.weights() for op in ops] == [op.weights() for op in layers[number]]
            assert summary(part)


def test_values_of_an_earlier_stage_pass_through_the_stages_between() -> None:
    """Gemma 4's inputs of each layer are computed in the first stage and read in all."""
    parts = divided(ALL["gemma4-inputs"].program(), 3)
    first, second = (part.ops[-1] for part in parts[:2])
    assert isinstance(first, Send)
    assert isinstance(second, Send)
    assert len(first.reads) == 2
    assert first.widths == second.widths


def test_values_that_no_later_stage_reads_do_not_pass() -> None:
    for name in ("llama-6-layers", "gpt2-transposed", "mixtral", "gemma2"):
        for part in divided(ALL[name].program(), 2)[:1]:
            send = part.ops[-1]
            assert isinstance(send, Send)
            assert send.widths == (part.facts.hidden_size,)


# Results

Make = Callable[[Program, RandomWeights, torch.dtype, CountedCollectives | None], Decoder]


def torch_decoder(
    program: Program, weights: RandomWeights, dtype: torch.dtype, collectives: CountedCollectives | None
) -> Decoder:
    return TorchDecoder(program, reading(program, weights, dtype), collectives)


def kernels_decoder(
    program: Program, weights: RandomWeights, dtype: torch.dtype, collectives: CountedCollectives | None
) -> Decoder:
    return CpuExecutor(program, reading(program, weights, dtype), collectives=collectives)


EXECUTORS: Mapping[str, tuple[Make, type[AttentionBackend]]] = {
    "torch": (torch_decoder, ReferenceBackend),
    "kernels": (kernels_decoder, BACKENDS["cpu"]),
}


WIDER: Mapping[str, Any] = {"hidden_size": 64, "word_embed_proj_dim": 64}
"""A change to models whose heads the kernels cannot compute."""
BY_HEADS = ("qwen2-14-heads", "three-key-heads", "llama4")
"""Models that get wider heads instead."""


def computable(name: str, executor: str) -> Program:
    """Return a model's program, with other sizes if the executor needs them. Skips the test if it lacks an op."""
    model = ALL[name]
    if executor == "torch":
        return model.program()
    reason = "the CPU kernels were not built"
    wider = {"head_dim": 16} if name in BY_HEADS else WIDER
    for values in ({}, wider) if library() is not None else ():
        program = replace(model, values={**model.values, **values}).program()
        target = Target(torch.device("cpu"), torch.float32, program.facts.attention, BLOCK, why_not_fused(program))
        try:
            select("cpu", target)
        except UsageError as error:
            reason = str(error)
        else:
            return program
    pytest.skip(reason)


def results_of(
    layout: Layout, parts: Sequence[Program], weights: RandomWeights, dtype: torch.dtype, executor: str
) -> list[Tensor]:
    """Return the hidden states of the ranks, each with its part of the program, in threads."""
    make, backend = EXECUTORS[executor]

    def of_rank(joined: JoinedRank, rank: int) -> Tensor:
        counted = CountedCollectives(joined.stage if layout.tensor > 1 else None, link=joined.link)
        decoder = make(parts[rank], weights, dtype, counted)
        return hidden_states(decoder, backend, PROMPT, CHUNK)

    return list(on_layout(layout, of_rank))


def whole_result(whole: Program, weights: RandomWeights, dtype: torch.dtype, executor: str) -> Tensor:
    make, backend = EXECUTORS[executor]
    return hidden_states(make(whole, weights, dtype, None), backend, PROMPT, CHUNK)


@pytest.mark.matrix(12)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ALL)
def test_stages_compute_the_bits_of_one_program(name: str, executor: str, dtype: torch.dtype) -> None:
    whole = computable(name, executor)
    weights = RandomWeights(whole)
    expected = whole_result(whole, weights, dtype, executor)
    assert expected.isfinite().all()
    for stages in numbers(name):
        layout = Layout(1, stages)
        parts = [part_of(whole, layout, rank, in_kernels=False) for rank in range(stages)]
        last, *_ = results_of(layout, parts, weights, dtype, executor)
        assert torch.equal(last, expected)


@pytest.mark.matrix(6)
@pytest.mark.parametrize("layout", [Layout(2, 2), Layout(3, 2), Layout(2, 3)], ids=str)
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.refused is None])
def test_ranks_of_stages_compute_what_the_ranks_of_one_stage_do(name: str, layout: Layout) -> None:
    whole = ALL[name].program()
    if layout.stages > most_stages(whole):
        return
    weights = RandomWeights(whole)
    one = Layout(layout.tensor)
    alone = [shard(whole, layout.tensor, rank) for rank in range(layout.tensor)]
    expected = results_of(one, alone, weights, torch.float32, "torch")
    parts = [part_of(whole, layout, rank, in_kernels=False) for rank in range(layout.size)]
    found = results_of(layout, parts, weights, torch.float32, "torch")
    assert all(torch.equal(rank, other) for rank, other in zip(found, expected, strict=False))
    assert torch.allclose(
        found[0], whole_result(whole, weights, torch.float32, "torch"), atol=TOLERANCE, rtol=TOLERANCE
    )


def test_the_result_of_a_stage_is_not_that_of_the_whole() -> None:
    """A stage without the others is refused, not computed in part."""
    whole = ALL["llama-6-layers"].program()
    part = divided(whole, 2)[1]
    with pytest.raises(ValueError, match="without the other stages"):
        whole_result(part, RandomWeights(whole), torch.float32, "torch")


def test_an_op_whose_columns_are_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ALL["llama-6-layers"].program()
    monkeypatch.setattr(stages_module, "Add", Receive)
    with pytest.raises(ModelError, match=r"has Add at the end of a layer, .* \(--pipeline-parallel 1\)"):
        divided(whole, 2)
