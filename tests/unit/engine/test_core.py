"""Whatever comes, in whatever order: every request gets the text that it would get alone."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated import VOCAB, SimulatedRunner, oracle

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.messages import AddRequest, EngineInfo, RequestOutput
from plimsoll_runtime.engine.params import SamplingParams
from plimsoll_runtime.errors import EngineDeadError, UsageError

EOS = 7


def make_core(
    *, num_blocks: int = 65, block_size: int = 4, eos: tuple[int, ...] = (), **options: Any
) -> tuple[EngineCore, SimulatedRunner]:
    config = EngineConfig(model="simulated", **({"max_batch_tokens": 16, "max_sequences": 4} | options))
    info = EngineInfo(
        model="simulated",
        architecture="none",
        dtype="none",
        device="cpu",
        attention_backend="none",
        vocab_size=VOCAB,
        max_model_len=(num_blocks - 1) * block_size,
        block_size=block_size,
        num_blocks=num_blocks,
        weight_bytes=0,
        kv_bytes=0,
        eos_token_ids=list(eos),
    )
    runner = SimulatedRunner(num_blocks, block_size, config.max_batch_tokens)
    return EngineCore(config, info, runner), runner


def request(
    name: str, prompt: list[int], *, salt: str = "", ignore_eos: bool = True, max_tokens: int | None = 8, **params: Any
) -> AddRequest:
    chosen = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=ignore_eos, **params)
    return AddRequest(name, prompt, chosen, salt)


def drain(core: EngineCore, limit: int = 2000) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(limit):
        if not core.has_work:
            return outputs
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
        core.check_integrity()
    raise AssertionError("requests are still running")


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


class Engine(RuleBasedStateMachine):
    """Requests with shared prefixes and salts come and are aborted while steps run, in pools that are too small."""

    @initialize(
        num_blocks=st.integers(9, 30),
        block_size=st.sampled_from([1, 4, 8]),
        budget=st.integers(1, 24),
        sequences=st.integers(1, 6),
        caching=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, budget: int, sequences: int, caching: bool) -> None:
        self.core, self.runner = make_core(
            num_blocks=num_blocks,
            block_size=block_size,
            max_batch_tokens=budget,
            max_sequences=sequences,
            prefix_caching=caching,
            eos=(EOS,),
        )
        self.expected: dict[str, list[int]] = {}
        self.received: dict[str, list[int]] = {}
        self.reports: dict[str, list[int]] = {}
        self.count = 0
        self.idle_steps = 0

    @rule(
        shared=st.integers(0, 20),
        tail=st.lists(st.integers(0, VOCAB - 1), max_size=10),
        salt=st.sampled_from(["", "a", "b"]),
        max_tokens=st.integers(1, 20),
        ignore_eos=st.booleans(),
        reports=st.booleans(),
    )
    def add(self, shared: int, tail: list[int], salt: str, max_tokens: int, ignore_eos: bool, reports: bool) -> None:
        prompt = [3 * i % VOCAB for i in range(shared)] + tail
        name = f"r{self.count}"
        self.count += 1
        wanted = request(
            name,
            prompt,
            salt=salt,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            prompt_logprobs=0 if reports else None,
        )
        if not 0 < len(prompt) < self.core.info.max_model_len:
            with pytest.raises(UsageError):
                self.core.add(wanted)
            return
        self.core.add(wanted)
        room = self.core.info.max_model_len - len(prompt)
        ends = frozenset() if ignore_eos else frozenset({EOS})
        self.expected[name] = oracle(prompt, min(max_tokens, room), ends)
        self.received[name] = []
        if reports:
            self.reports[name] = prompt[1:]

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected)))
        self.core.abort([name, "unknown"])
        del self.expected[name]

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    @precondition(lambda self: not self.core.stats.running and not self.core.stats.waiting)
    @rule()
    def reset_the_prefix_cache(self) -> None:
        self.core.reset_prefix_cache()
        assert self.core.stats.blocks_cached == 0

    @invariant()
    def records_agree(self) -> None:
        if hasattr(self, "core"):
            self.core.check_integrity()

    def teardown(self) -> None:
        """Everyone finishes within a bound that grows with the work alone: nobody starves, nothing deadlocks."""
        if not hasattr(self, "core"):
            return
        limit = 50 + 40 * sum(len(t) + 30 for t in self.expected.values())
        for _ in range(limit):
            if not self.core.has_work:
                break
            self._step()
        assert not self.expected
        stats = self.core.stats
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)

    def _step(self) -> None:
        for output in self.core.step().outputs:
            name = output.request_id
            assert name in self.expected, "an output of an aborted or finished request"
            if not self.received[name] and name in self.reports:
                assert output.prompt_logprobs is not None
                assert [p.token_id for p in output.prompt_logprobs] == self.reports[name]
                assert [p.logprob for p in output.prompt_logprobs] == [
                    -float(i) for i in range(len(self.reports[name]))
                ]
            self.received[name].extend(output.token_ids)
            if output.finish_reason is not None:
                assert self.received[name] == self.expected.pop(name)


Engine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngine = Engine.TestCase


def test_a_second_request_shares_the_first_ones_prefix() -> None:
    core, _ = make_core()
    prompt = list(range(22))
    core.add(request("first", prompt))
    first = drain(core)["first"]
    core.add(request("second", prompt))
    second = drain(core)["second"]
    assert first[0].cached_tokens == 0
    assert second[0].cached_tokens == 20
    assert tokens_of(first) == tokens_of(second) == oracle(prompt, 8)


def test_a_prompt_of_whole_blocks_copies_its_last_one() -> None:
    """All 20 tokens are cached; the last is computed again, in a block of its own."""
    core, _ = make_core()
    prompt = list(range(20))
    for name in ("first", "second", "third"):
        core.add(request(name, prompt))
        outputs = drain(core)[name]
        assert tokens_of(outputs) == oracle(prompt, 8)
    assert outputs[0].cached_tokens == 19


def test_a_salt_shares_nothing_with_another() -> None:
    core, _ = make_core()
    for name, salt in (("a", "tenant-a"), ("b", "tenant-b"), ("again", "tenant-a")):
        core.add(request(name, list(range(20)), salt=salt))
        cached = drain(core)[name][0].cached_tokens
        assert cached == (19 if name == "again" else 0)


def test_blocks_run_out_and_everyone_still_finishes() -> None:
    core, _ = make_core(num_blocks=11, max_sequences=4)
    prompts = {f"r{i}": [i, i + 1, i + 2] for i in range(6)}
    for name, prompt in prompts.items():
        core.add(request(name, prompt, max_tokens=20))
    outputs = drain(core)
    assert core.stats.preemptions > 0
    assert {n: tokens_of(o) for n, o in outputs.items()} == {n: oracle(p, 20) for n, p in prompts.items()}


def test_decodes_are_not_held_up_by_a_long_prompt() -> None:
    core, _ = make_core(max_batch_tokens=8)
    core.add(request("talker", [1, 2], max_tokens=30))
    core.step()
    core.add(request("reader", list(range(40)), max_tokens=2))
    for _ in range(5):
        assert [o.request_id for o in core.step().outputs] == ["talker"]


@pytest.mark.parametrize(
    ("options", "reason", "count"),
    [
        ({"max_tokens": 5}, "length", 5),
        ({"max_tokens": None}, "length", 64 * 4 - 3),
        ({"max_tokens": 50, "stop_token_ids": tuple(range(VOCAB)), "min_tokens": 4}, "stop", 4),
        ({"max_tokens": 50, "stop_token_ids": tuple(range(VOCAB))}, "stop", 1),
    ],
)
def test_how_it_ends(options: dict[str, Any], reason: str, count: int) -> None:
    core, _ = make_core()
    core.add(request("r", [1, 2, 3], **options))
    outputs = drain(core)["r"]
    assert outputs[-1].finish_reason == reason
    assert len(tokens_of(outputs)) == count
    assert (outputs[-1].stop_token_id is not None) == (reason == "stop")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([1] * 256, "256 tokens"), ([VOCAB], "vocabulary"), ([-1], "vocabulary")],
)
def test_refusals_leave_the_engine_as_it_was(prompt: list[int], message: str) -> None:
    core, _ = make_core()
    with pytest.raises(UsageError, match=message):
        core.add(request("r", prompt))
    assert not core.has_work
    core.add(request("r", [1]))
    with pytest.raises(UsageError, match="in use"):
        core.add(request("r", [1]))


def test_a_runner_that_raises_ends_the_engine() -> None:
    core, runner = make_core()
    core.add(request("r", [1, 2]))
    runner.fail = True
    with pytest.raises(EngineDeadError, match="the device is gone"):
        core.step()
    with pytest.raises(EngineDeadError):
        core.add(request("s", [1]))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="fcfs"):
        make_core(policy="best")
