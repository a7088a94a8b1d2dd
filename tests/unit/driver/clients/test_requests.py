"""A shared prompt is sent to the engine process once, and stays there only while requests may refer to it."""

from __future__ import annotations

import msgspec
import pytest
from builders import request, with_context
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.driver.clients.requests import PromptSender, PromptStore, as_command
from plimsoll_runtime.engine.protocol.messages import AddAnswer, AddRequest, Command, DropPrompt, SharePrompt
from plimsoll_runtime.engine.protocol.prompt import Prompt

LONG = 131_000


class Wire:
    """Both sides, and the messages between them."""

    def __init__(self) -> None:
        self.sender = PromptSender(self._carry)
        self.store = PromptStore()
        self.came: list[AddRequest] = []
        self.bytes = 0

    def _carry(self, command: Command) -> None:
        message = msgspec.msgpack.encode(command)
        self.bytes += len(message)
        arrived: Command = msgspec.msgpack.decode(message, type=Command)
        match arrived:
            case SharePrompt():
                self.store.share(arrived)
            case DropPrompt():
                self.store.drop(arrived)
            case AddAnswer():
                self.came.append(self.store.request(arrived))


def answers(prompt: Prompt, count: int, *, shares: bool = True) -> list[AddRequest]:
    context = with_context(request("r", [1]), cache_salt="salt", arrived_ns=7, second_text=3).context
    return [AddRequest(f"r{i}", prompt, context, shares_prompt=shares) for i in range(count)]


def test_many_answers_cost_one_prompt_of_four_bytes_a_token() -> None:
    wire, prompt = Wire(), Prompt(range(LONG))
    for wanted in answers(prompt, 128):
        wire.sender.add(wanted)
    assert 4 * LONG < wire.bytes < 4 * LONG + 128 * 200
    assert len({id(came.prompt_token_ids) for came in wire.came}) == 1
    assert wire.came[127].prompt_token_ids == prompt


def test_a_request_comes_as_it_was() -> None:
    wire = Wire()
    for wanted in (*answers(Prompt([1, 2]), 1), *answers(Prompt([3]), 1, shares=False)):
        wire.sender.add(wanted)
        assert msgspec.structs.replace(wire.came[-1], shares_prompt=wanted.shares_prompt) == wanted
    wire.sender.add(plain := request("list", [4, 5]))
    assert wire.came[-1] == plain


def test_a_prompt_of_one_answer_leaves_nothing_behind() -> None:
    wire = Wire()
    (wanted,) = answers(Prompt([1]), 1, shares=False)
    wire.sender.add(wanted)
    wire.sender.done(wanted)
    assert len(wire.store) == 0


@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_prompt_is_there_exactly_while_one_of_its_requests_is(turns: list[int]) -> None:
    """Requests of three prompts begin and end in any order, and begin again."""
    wire = Wire()
    prompts = [Prompt([number] * 9) for number in range(3)]
    pool = [wanted for prompt in prompts for wanted in answers(prompt, 2)]
    under_way: set[int] = set()
    for turn in turns:
        if turn in under_way:
            wire.sender.done(pool[turn])
        else:
            wire.sender.add(pool[turn])
            assert wire.came[-1].prompt_token_ids == prompts[turn // 2]
        under_way ^= {turn}
        assert len(wire.store) == len({number // 2 for number in under_way})


def test_equal_prompts_of_two_requests_are_two() -> None:
    wire = Wire()
    (one,), (other,) = answers(Prompt([1]), 1), answers(Prompt([1]), 1)
    wire.sender.add(one)
    wire.sender.add(other)
    wire.sender.done(one)
    assert len(wire.store) == 1
    assert as_command(other).prompt == Prompt([1]).to_bytes()


def test_a_key_that_nobody_gave_is_an_error() -> None:
    wanted = request("r", [1])
    with pytest.raises(KeyError):
        PromptStore().request(as_command(wanted, key=3))
