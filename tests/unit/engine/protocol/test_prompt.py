"""A prompt stores four bytes for each token, and any number of sequences share it."""

from __future__ import annotations

import sys

import pytest
from builders import drain, make_core, request, tokens_of
from hypothesis import given
from hypothesis import strategies as st
from simulated import oracle

from plimsoll_runtime.engine.core import Runner
from plimsoll_runtime.engine.protocol.messages import AddRequest
from plimsoll_runtime.engine.protocol.plan import Launched, SlotInit, StepPlan
from plimsoll_runtime.engine.protocol.prompt import TOKEN_BYTES, Prompt

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=30)


@given(TOKENS, st.integers(-40, 40), st.integers(-40, 40))
def test_it_is_the_sequence_of_its_tokens(tokens: list[int], start: int, stop: int) -> None:
    prompt = Prompt(tokens)
    assert (len(prompt), list(prompt), prompt[start:stop]) == (len(tokens), tokens, tokens[start:stop])
    assert prompt == tokens == list(Prompt.from_bytes(prompt.to_bytes()))
    assert prompt == Prompt(tokens) != Prompt([*tokens, 1])
    assert len(prompt.to_bytes()) == TOKEN_BYTES * len(tokens)
    assert bool(prompt) == bool(tokens)
    assert not tokens or (prompt[-1], prompt.extent) == (tokens[-1], (min(tokens), max(tokens)))


@pytest.mark.parametrize("token", [-1, 2**32])
def test_what_is_no_token_is_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        Prompt([token])


def test_a_prompt_of_a_prompt_is_the_same() -> None:
    prompt = Prompt([1, 2])
    assert Prompt.of(prompt) is prompt
    assert Prompt.of([1, 2]) == prompt


class Recorder:
    """Records the slot assignments of sequences."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.inits: list[SlotInit] = []

    def run(self, plan: StepPlan) -> Launched:
        self.inits += plan.new_slots
        return self._inner.run(plan)


def test_all_answers_hold_one_prompt_which_nobody_changes() -> None:
    """Checked while waiting, while running and after a preemption; each output equals the one computed alone."""
    recorders: list[Recorder] = []

    def recorded(runner: Runner) -> Runner:
        recorders.append(Recorder(runner))
        return recorders[0]

    core, _ = make_core(num_blocks=24, wrap=recorded)
    prompt = Prompt([i % 40 for i in range(25)])
    before, holders = list(prompt), sys.getrefcount(prompt)
    wanted = [_answer(prompt, i) for i in range(12)]
    for one in wanted:
        core.add(one)
    outputs = drain(core)
    assert {name: tokens_of(told) for name, told in outputs.items()} == {
        one.request_id: oracle(one, 92).token_ids for one in wanted
    }
    assert core.stats.preemptions > 0
    assert len(recorders[0].inits) == 12 + core.stats.preemptions
    assert all(init.prompt_ids is prompt for init in recorders[0].inits)
    assert list(prompt) == before
    recorders[0].inits.clear()
    wanted.clear()
    del one
    assert sys.getrefcount(prompt) <= holders + 1, "the engine keeps it no longer than its sequences"


def _answer(prompt: Prompt, number: int) -> AddRequest:
    plain = request(f"r{number}", [1], temperature=1.0, seed=number, max_tokens=30)
    return AddRequest(plain.request_id, prompt, plain.context, shares_prompt=True)
