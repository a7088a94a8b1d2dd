"""Ranks with parts of the vocabulary run the steps of plans as one rank does, also if some lack memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from model_support.random_weights import RandomWeights, reading
from model_support.tiny import COMMON
from parallel_support.ranks import ThreadCollectives, on_ranks

from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SlotInit, StepPlan, TableChange
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.runners.base import StepRunner
from plimsoll_runtime.execution.runners.cpu import CpuRunner
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.parallel.channel import Channel, Report, StepDone, StepShort, encoded
from plimsoll_runtime.parallel.choice import Choice
from plimsoll_runtime.parallel.choosing_runner import ChoosingRunner
from plimsoll_runtime.parallel.layout import vocabulary_parts
from plimsoll_runtime.parallel.leader import of_member
from plimsoll_runtime.parallel.member import CountedCollectives, Passed, RankSteps
from plimsoll_runtime.parallel.shard import shard

VOCAB, RANKS, BLOCK = 1700, 3, 16
PASSED = Passed(torch.float32, torch.device("cpu"))
WISHES: Sequence[Mapping[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 2.0, "top_k": 800},
    {"temperature": 1.0, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 0.0, "prompt_logprobs": 1},
]
PROMPTS = [[3 + slot, 700 + slot, 1690 + slot, 5] for slot in range(len(WISHES))]
PLACES = ("forward", "logits", "logits-done")
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture(scope="module")
def whole() -> Program:
    from transformers import LlamaConfig

    values = {**COMMON, "vocab_size": VOCAB, "tie_word_embeddings": True}
    return program_of(describe({**LlamaConfig(**values).to_dict(), "architectures": ["LlamaForCausalLM"]}))


def prefill(*, freed: bool = False) -> StepPlan:
    """Return the plan of all prompts. `freed`: other sequences have left the slots."""
    new = [
        SlotInit(slot, RequestContext(SamplingParams(**wishes, ignore_eos=True), seed=slot), prompt)
        for slot, (wishes, prompt) in enumerate(zip(WISHES, PROMPTS, strict=True))
    ]
    sequences = [
        ScheduledSequence(
            *(slot, 0, prompt, [TableChange(0, 0, 0, [1 + slot])], True),
            prompt_targets=prompt[1:] if "prompt_logprobs" in WISHES[slot] else (),
        )
        for slot, prompt in enumerate(PROMPTS)
    ]
    return StepPlan(sequences, freed_slots=range(len(WISHES)) if freed else (), new_slots=new)


def decode(tokens: Sequence[int], position: int) -> StepPlan:
    """Return the plan of one more token of each sequence."""
    return StepPlan([ScheduledSequence(slot, position, [token], (), True) for slot, token in enumerate(tokens)])


def parts_of(program: Program, weights: RandomWeights, group: CountedCollectives | None) -> ForwardPass:
    decoder = TorchDecoder(program, reading(program, weights, torch.float32), group)
    cache = KvCache(program.facts.attention, 1 + len(WISHES), BLOCK, torch.float32, torch.device("cpu"))
    return ForwardPass(StepParts(decoder, cache), [ReferenceBackend])


@dataclass
class Scarcity:
    """Makes a rank run out of memory in one step, at one of PLACES."""

    runner: StepRunner
    step: int
    place: str
    steps: int = -1

    def run(self, plan: StepPlan) -> Any:
        self.steps += 1
        return self.runner.run(plan)

    def install(self) -> None:
        decoder: Any = self.runner._parts.decoder
        self.runner._forward_pass.run = self._wrapped(self.runner._forward_pass.run, "forward")  # type: ignore[method-assign]
        decoder.logits = self._wrapped(decoder.logits, "logits")

    def _wrapped(self, work: Callable[..., Any], place: str) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if self.steps == self.step and self.place == place:
                raise torch.OutOfMemoryError(FULL)
            done = work(*args)
            if self.steps == self.step and self.place == f"{place}-done":
                raise torch.OutOfMemoryError(FULL)
            return done

        return wrapped


def of_one(whole: Program, weights: RandomWeights, plans: Sequence[StepPlan]) -> list[Any]:
    runner = CpuRunner(parts_of(whole, weights, None), Sampler(VOCAB, (2,)), len(WISHES))
    return [runner.run(plan).result().outputs for plan in plans]


def of_ranks(
    whole: Program, weights: RandomWeights, plans: Sequence[StepPlan], failed: int = -1, step: int = -1, place: str = ""
) -> list[list[Report]]:
    """Return the reports of each rank; rank `failed` lacks memory in a step."""
    parts = vocabulary_parts(VOCAB, RANKS)
    assert parts is not None

    def of_rank(group: ThreadCollectives, rank: int) -> list[Report]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            engine, counted = Channel(ours, Report), CountedCollectives(group)
            for plan in plans:
                engine.send(encoded(plan if rank == 0 else of_member(plan)))
            ours.shutdown(socket.SHUT_WR)
            program, choice = shard(whole, RANKS, rank), Choice(counted, parts, rank)
            sampler = Sampler(VOCAB, (2,)) if rank == 0 else None
            runner = ChoosingRunner(parts_of(program, weights, counted), sampler, choice, len(WISHES))
            scarce = Scarcity(runner, step if rank == failed else -1, place)
            scarce.install()
            RankSteps(Channel(theirs, StepPlan), scarce, Timeline(), counted, program, PASSED, choice.fail).run()
            return [engine.receive() for _ in plans]

    return list(on_ranks(RANKS, of_rank))


def told(outputs: Sequence[Any]) -> list[Any]:
    """Return tokens, and the tokens of log probabilities."""
    return [
        (
            each.token_id,
            each.error,
            each.logprob and [token for token, _ in each.logprob.top],
            [entry.token_id for entry in each.prompt_logprobs],
        )
        for each in outputs
    ]


def test_ranks_compute_the_outputs_of_one(whole: Program) -> None:
    weights = RandomWeights(whole)
    [first] = of_one(whole, weights, [prefill()])
    tokens = [output.token_id for output in first]
    plans = [prefill(), decode(tokens, 4), decode([7] * len(WISHES), 5)]
    expected = of_one(whole, weights, plans)
    assert [len(output.prompt_logprobs) for output in expected[0]] == [0, 0, 0, 0, 0, 3]
    found, *members = of_ranks(whole, weights, plans)
    for report, outputs in zip(found, expected, strict=True):
        assert isinstance(report, StepDone)
        assert told(report.outputs) == told(outputs)
    for reports in members:
        assert all(isinstance(each, StepDone) for each in reports)
        assert {output.token_id for each in reports for output in each.outputs} == {None}  # type: ignore[union-attr]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("failed", range(RANKS))
def test_a_step_for_which_a_rank_lacks_memory_ends_on_all(failed: int, place: str, whole: Program) -> None:
    """The scheduler then frees the slots and plans them again."""
    weights = RandomWeights(whole)
    plans = [prefill(), decode([7] * len(WISHES), 4), prefill(freed=True)]
    [expected] = of_one(whole, weights, [prefill()])
    ranks = of_ranks(whole, weights, plans, failed, step=1, place=place)
    for rank, reports in enumerate(ranks):
        assert [isinstance(each, StepShort) for each in reports] == [False, True, False]
        short = reports[1]
        assert isinstance(short, StepShort)
        assert short.message == (FULL if rank == failed else f"rank {failed} has too little memory for this step")
    for report in (ranks[0][0], ranks[0][2]):
        assert isinstance(report, StepDone)
        assert told(report.outputs) == told(expected)


def test_a_members_plan_of_a_new_sequence_is_small() -> None:
    prompt = list(range(5000))
    init = SlotInit(3, RequestContext(SamplingParams(logit_bias={7: 1.0}), seed=2**62), prompt, output_ids=[1] * 700)
    plan = StepPlan([], new_slots=[init])
    member = of_member(plan)
    assert member == replace(plan, new_slots=(), draws=member.draws)
    assert (member.draws[0].num_outputs, member.draws[0].whole) == (700, True)
    assert len(encoded(member)) - len(encoded(StepPlan([]))) < 64
