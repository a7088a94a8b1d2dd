"""Prompts of pooling models: batched with others, in chunks or whole, and each ends once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders import drain, request, with_context
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.limits import check_request
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, RequestOutput
from plimsoll_runtime.engine.protocol.plan import LAST_CHOSEN, SequenceOutput, StepPlan, StepResult
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.errors import UsageError

LONGEST, BLOCK, VOCAB = 24, 4, 50
BROKEN = 49


class VectorRunner:
    """Returns each prompt's tokens and the position of its second text, collected by chunks; records the plans."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []
        self._seen: dict[int, list[int]] = {}
        self._second: dict[int, int] = {}

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for init in plan.new_slots:
            self._seen[init.slot] = list(init.prompt_ids)
            self._second[init.slot] = init.context.second_text
        outputs = []
        for entry in plan.sequences:
            prompt = self._seen[entry.slot]
            assert LAST_CHOSEN not in entry.token_ids, "a token is to be computed behind a prompt"
            assert list(entry.token_ids) == prompt[entry.start : entry.start + len(entry.token_ids)]
            assert entry.sample == (entry.start + len(entry.token_ids) == len(prompt))
            if BROKEN in prompt and entry.sample:
                outputs.append(SequenceOutput(error="not finite"))
            else:
                vector = bytes([*prompt, self._second[entry.slot]]) if entry.sample else None
                outputs.append(SequenceOutput(vector=vector))
        return StepResult(outputs)


def make(*, whole: bool, every_token: bool, **options: Any) -> tuple[EngineCore, VectorRunner]:
    config = EngineConfig(
        model="m",
        **{"max_batch_tokens": 8, "max_sequences": 3, "overlap": False, "check_integrity_every": 1, **options},
    )
    blocks, size = (2 * config.max_sequences + 1, LONGEST) if whole else (LONGEST, BLOCK)
    info = EngineInfo(
        model="m",
        architecture="none",
        dtype="none",
        device="cpu",
        attention_backend="none",
        vocab_size=VOCAB,
        max_model_len=LONGEST,
        block_size=size,
        num_blocks=blocks,
        weight_bytes=0,
        kv_bytes=0 if whole else blocks,
        eos_token_ids=[2],
        policy=config.policy,
        pooling=PoolingInfo("embed", 3, whole=whole, every_token=every_token),
    )
    runner = VectorRunner()
    return EngineCore(config, info, runner), runner


def asked(name: str, prompt: Sequence[int], second: int = 0, **params: Any) -> AddRequest:
    return with_context(request(name, list(prompt), max_tokens=1, **params), second_text=second)


def vector_of(output: RequestOutput) -> list[int]:
    return list(output.vector or b"")


def test_wholes_wait_for_a_step_that_holds_them() -> None:
    core, runner = make(whole=True, every_token=True)
    prompts = {"a": [1] * 10, "b": [2] * 20, "c": [3] * 3, "d": [4] * LONGEST}
    for name, prompt in prompts.items():
        core.add(asked(name, prompt))
    outputs = drain(core)
    assert {name: vector_of(each[0]) for name, each in outputs.items()} == {n: [*p, 0] for n, p in prompts.items()}
    # A step holds the longest possible prompt, even with a smaller token budget, and the order is kept.
    assert [[len(s.token_ids) for s in plan.sequences] for plan in runner.plans] == [[10], [20, 3], [LONGEST]]


def test_chunks_end_with_the_last_one() -> None:
    core, runner = make(whole=False, every_token=True)
    core.add(asked("a", range(20), second=7))
    core.add(asked("b", [5]))
    assert {name: vector_of(each[0]) for name, each in drain(core).items()} == {"a": [*range(20), 7], "b": [5, 0]}
    assert [[len(s.token_ids) for s in plan.sequences] for plan in runner.plans] == [[8], [8], [4, 1]]
    stats = core.stats
    assert (stats.blocks_used, stats.generated_tokens, stats.prompt_tokens) == (0, 0, 21)


@pytest.mark.parametrize("every_token", [False, True])
def test_prefixes_are_found_where_the_last_state_is_enough(every_token: bool) -> None:
    core, _ = make(whole=False, every_token=every_token)
    for name in "ab":
        core.add(asked(name, range(17)))
        [output] = drain(core)[name]
        assert vector_of(output) == [*range(17), 0]
        assert output.cached_tokens == (16 if name == "b" and not every_token else 0)


def test_a_prompt_may_be_as_long_as_the_model_takes() -> None:
    core, _ = make(whole=False, every_token=False)
    check_request(asked("a", [1] * LONGEST), core.info)
    with pytest.raises(UsageError, match=f"has {LONGEST + 1} tokens, but at most {LONGEST} are allowed"):
        core.add(asked("a", [1] * (LONGEST + 1)))


def test_one_that_fails_ends_alone() -> None:
    core, _ = make(whole=True, every_token=True)
    core.add(asked("a", [1, BROKEN]))
    core.add(asked("b", [1]))
    outputs = drain(core)
    assert (outputs["a"][0].finish_reason, outputs["a"][0].error) == ("error", "not finite")
    assert vector_of(outputs["b"][0]) == [1, 0]


class PooledMachine(RuleBasedStateMachine):
    """Requests, aborts and steps in any order: each request that is not aborted gets its own vector, once."""

    def __init__(self) -> None:
        super().__init__()
        self.core: EngineCore | None = None
        self.prompts: dict[str, list[int]] = {}
        self.open: set[str] = set()

    @precondition(lambda self: self.core is None)
    @rule(
        whole=st.booleans(),
        every_token=st.booleans(),
        overlap=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority"]),
    )
    def start(self, whole: bool, every_token: bool, overlap: bool, policy: str) -> None:
        self.core, self.runner = make(whole=whole, every_token=every_token or whole, overlap=overlap, policy=policy)

    @precondition(lambda self: self.core is not None)
    @rule(prompt=st.lists(st.integers(0, 3), min_size=1, max_size=LONGEST), urgent=st.booleans())
    def add(self, prompt: list[int], urgent: bool) -> None:
        assert self.core is not None
        name = str(len(self.prompts))
        priority = -1 if urgent and self.core.info.policy == "priority" else 0
        self.prompts[name] = prompt
        self.open.add(name)
        self.core.add(asked(name, prompt, priority=priority))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        assert self.core is not None
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.core.abort([name])
        self.open.discard(name)

    @precondition(lambda self: self.core is not None)
    @rule()
    def step(self) -> None:
        assert self.core is not None
        for output in self.core.step().outputs:
            assert output.request_id in self.open
            self.open.discard(output.request_id)
            assert output.finish_reason == "stop"
            assert vector_of(output) == [*self.prompts[output.request_id], 0]

    @invariant()
    def is_sound(self) -> None:
        if self.core is not None:
            self.core.check_integrity()

    def teardown(self) -> None:
        if self.core is None:
            return
        for _ in range(200):
            if not self.core.has_work:
                break
            self.step()
        assert not self.open
        assert self.core.stats.blocks_used == 0


PooledMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPooledMachine = PooledMachine.TestCase
