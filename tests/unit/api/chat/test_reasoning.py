"""Reasoning in chats: complete and streamed, counted, limited, switched, and returned to the template."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
import pytest_asyncio

from plimsoll_runtime.api.schemas.chat import Effort
from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server, template

pytestmark = pytest.mark.asyncio(loop_scope="module")

QWEN = (
    "{% if tools %}{{ tools | tojson }}<tool_call>arguments{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
R1 = QWEN + "{% if add_generation_prompt and thinking is not false %}<think>\n{% endif %}"
OSS = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|channel|>analysis"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
)
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
THOUGHT = "<think>\nHm, größer.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinking(tokenizer: Tokenizer) -> AsyncIterator[Any]:
    async with running_server(tokenizer) as running:
        yield running


async def ask(thinking: Any, answer: str, source: str = QWEN, **fields: Any) -> Any:
    """Return the response of a chat, or the JSON of its error."""
    thinking.engine.reset()
    thinking.engine.answer = answer.encode()
    tokenizer = thinking.server.state.models.model.tokenizer
    with template(tokenizer, source):
        async with thinking.http() as http:
            body = {"model": "fake", "messages": HELLO, **fields}
            found = await http.post("/v1/chat/completions", json=body)
    if not fields.get("stream"):
        return found.json()
    lines = [line.removeprefix("data: ") for line in found.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def headers_of(thinking: Any, path: str, source: str, **fields: Any) -> Any:
    """Return the headers of a chat's response."""
    thinking.engine.reset()
    with template(thinking.server.state.models.model.tokenizer, source):
        async with thinking.http() as http:
            body = {"model": "fake"} | ({} if "input" in fields else {"messages": HELLO}) | fields
            found = await http.post(path, json=body)
    assert found.status_code == 200, found.text
    return found.headers


def prompt(thinking: Any) -> str:
    return bytes(token for token in thinking.engine.asked[0].prompt_token_ids if token < 256).decode()


async def test_a_thought_is_told_apart(thinking: Any) -> None:
    answer = await ask(thinking, THOUGHT + "Two.")
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, größer.", "Two.")
    tokens = len(THOUGHT.rstrip().encode())
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": tokens}
    assert answer["usage"]["completion_tokens"] == len((THOUGHT + "Two.").encode()) + 1


async def test_no_thought(thinking: Any) -> None:
    answer = await ask(thinking, "Two <b>.")
    message = answer["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert message["content"] == "Two <b>."
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_a_model_that_does_not_think_says_nothing_of_it(thinking: Any) -> None:
    answer = await ask(thinking, THOUGHT, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert answer["choices"][0]["message"]["content"] == THOUGHT
    assert "completion_tokens_details" not in answer["usage"]
    assert thinking.engine.asked[0].context.params.thought is None


async def test_a_stream(thinking: Any) -> None:
    chunks = await ask(thinking, THOUGHT + "Two.", stream=True, stream_options={"include_usage": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, größer."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Two."
    kinds = ["reasoning_content" in delta for delta in deltas if delta.get("content") or "reasoning_content" in delta]
    assert kinds == sorted(kinds, reverse=True)
    assert len(kinds) > 10
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(THOUGHT.rstrip().encode())


async def test_thoughts_that_nobody_wants_to_hear(thinking: Any) -> None:
    answer = await ask(thinking, THOUGHT + "Two.", include_reasoning=False)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Two.", "refusal": None}
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    chunks = await ask(thinking, THOUGHT + "Two.", include_reasoning=False, stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert not any("reasoning_content" in delta for delta in deltas)
    assert "".join(delta.get("content", "") for delta in deltas) == "Two."


async def test_a_prompt_that_opens_the_thought(thinking: Any) -> None:
    answer = await ask(thinking, "Hm.\n</think>\n\nTwo.", R1, n=2)
    for choice in answer["choices"]:
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm.", "Two.")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 * len("Hm.\n</think>")
    closed = await ask(thinking, "Two.", R1, chat_template_kwargs={"thinking": False})
    assert closed["choices"][0]["message"]["content"] == "Two."
    assert not thinking.engine.asked[0].context.params.thought.open


async def test_a_thought_that_the_client_began(thinking: Any) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "<think>Hm"}]
    answer = await ask(
        thinking, ", so.</think>Two.", messages=begun, continue_final_message=True, add_generation_prompt=False
    )
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (", so.", "Two.")


async def test_an_answer_that_is_cut_in_its_thought(thinking: Any) -> None:
    answer = await ask(thinking, THOUGHT, max_tokens=12)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm,", "")
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_thoughts_before_calls(thinking: Any) -> None:
    answer = await ask(thinking, THOUGHT + CALL, tools=TOOLS)
    [choice] = answer["choices"]
    assert choice["message"]["reasoning_content"] == "Hm, größer."
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    chunks = await ask(thinking, THOUGHT + CALL, tools=TOOLS, stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, größer."
    assert any("tool_calls" in delta for delta in deltas)


async def test_gpt_oss(thinking: Any) -> None:
    thought = "<|channel|>analysis<|message|>Hm.<|end|>"
    answer = await ask(
        thinking, f"{thought}<|start|>assistant<|channel|>final<|message|>Two.", OSS, reasoning_effort="high"
    )
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Two.")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(thought)
    assert "Reasoning: high" in prompt(thinking)
    call = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    answer = await ask(thinking, thought + call, OSS, tools=TOOLS, tool_choice="required")
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm.", None)
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
    params = thinking.engine.asked[0].context.params
    assert (params.thought.answer, params.skip_special_tokens) == ((), False)


async def test_earlier_thoughts_are_shown_to_the_template(thinking: Any) -> None:
    for field in ("reasoning_content", "reasoning"):
        said = [*HELLO, {"role": "assistant", "content": "Two.", field: "Hm."}, *HELLO]
        await ask(thinking, "Two.", messages=said)
        assert "[assistant]<think>Hm.</think>Two." in prompt(thinking)


async def test_gpt_oss_knows_earlier_thoughts_by_another_name(thinking: Any) -> None:
    source = "{% for m in messages %}[{{ m.thinking }}|{{ m.content }}|{{ m.reasoning_content }}]{% endfor %}" + OSS
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = [*HELLO, {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call]}]
    await ask(thinking, "", source, messages=[*said, {"role": "tool", "tool_call_id": "c", "content": "x"}])
    assert prompt(thinking).startswith("[|Hi|][Hm.\n\nI look.||][|x|]")
    await ask(thinking, "", source, messages=[*HELLO, {"role": "assistant", "content": "Two.", "reasoning": "Hm."}])
    assert prompt(thinking).startswith("[|Hi|][Hm.|Two.|]")


EFFORTS: list[tuple[str, str, str]] = [
    (QWEN, "none", "[assistant]<think>\n\n</think>"),
    (QWEN, "medium", "[assistant]"),
    (OSS, "low", "Reasoning: low"),
]


async def test_effort_is_told_to_the_template(thinking: Any) -> None:
    for source, effort, shown in EFFORTS:
        await ask(thinking, "Two.", source, reasoning_effort=effort)
        assert shown in prompt(thinking), effort
    await ask(thinking, "Two.", reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert "<think>" not in prompt(thinking)


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (OSS, {"reasoning_effort": "minimal"}, "reasoning_effort", "low, medium, high"),
    (QWEN, {"thinking_budget": -1}, "thinking_budget", "greater than or equal to 0"),
]


async def test_what_cannot_be_told_is_refused(thinking: Any) -> None:
    for source, fields, param, told in REFUSED:
        error = (await ask(thinking, "Two.", source, **fields))["error"]
        assert error["param"] == param, (fields, error)
        assert told in error["message"], (fields, error)
    assert thinking.engine.asked == []


PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
EITHER = PLAIN + "{% if thinking %}<think>{% endif %}"
"""A template that reasons only if told to."""


@pytest.mark.matrix(6)
@pytest.mark.parametrize("effort", get_args(Effort))
@pytest.mark.parametrize("stream", [False, True])
async def test_effort_is_a_hint(thinking: Any, effort: str, stream: bool) -> None:
    """A model without levels answers, and the header names the ignored field."""
    for source in (PLAIN, QWEN, EITHER):
        headers = await headers_of(thinking, "/v1/chat/completions", source, reasoning_effort=effort, stream=stream)
        unheard = source == PLAIN or effort not in ("none", "medium")
        assert headers.get("x-plimsoll-ignored") == ("reasoning_effort" if unheard else None)
        thinks = prompt(thinking).endswith("<think>") if source == EITHER else "</think>" not in prompt(thinking)
        assert source == PLAIN or thinks == (effort != "none"), (source, prompt(thinking))


async def test_effort_of_a_response_is_a_hint(thinking: Any) -> None:
    """The field is named once, however often a conversation is shortened until it fits."""
    turns: list[Any] = [{"role": "user", "content": "x" * 900}, {"role": "assistant", "content": "y"}] * 8
    body = {"input": [*turns, *HELLO], "truncation": "auto", "reasoning": {"effort": "high"}, "mood": 1}
    headers = await headers_of(thinking, "/v1/responses", PLAIN, max_output_tokens=9, **body)
    assert headers["x-plimsoll-ignored"] == "mood, reasoning.effort"


async def test_a_hint_is_refused_where_unknown_fields_are(tokenizer: Tokenizer) -> None:
    async with running_server(tokenizer, strict_parameters=True) as strict:
        error = (await ask(strict, "Two.", PLAIN, reasoning_effort="low"))["error"]
        assert (error["param"], "has no reasoning levels" in error["message"]) == ("reasoning_effort", True)
        error = (await ask(strict, "Two.", QWEN, reasoning_effort="low"))["error"]
        assert "send 'none' for no reasoning or 'medium' for reasoning" in error["message"]


async def test_a_budget_goes_to_the_engine(thinking: Any) -> None:
    for field in ("thinking_budget", "thinking_token_budget"):
        await ask(thinking, "Two.", R1, **{field: 7})
        thought = thinking.engine.asked[0].context.params.thought
        assert (thought.open, thought.budget) == (True, 7)
        assert bytes(token for (token,) in thought.closing) == b"\n</think>"
        assert thinking.engine.vocabulary is not None
    await ask(thinking, "Two.", OSS, thinking_budget=7)
    *closing, last = thinking.engine.asked[0].context.params.thought.closing
    assert bytes(token for (token,) in closing) == b"<|end|><|start|>assistant<|channel|>"
    assert last == (ord("f"),)


async def test_an_answer_of_a_form_begins_behind_its_thought(thinking: Any) -> None:
    form: dict[str, Any] = {"response_format": {"type": "json_object"}}
    await ask(thinking, THOUGHT + "{}", **form)
    params = thinking.engine.asked[0].context.params
    assert params.constraint is not None
    assert (params.thought.answer, bytes(params.thought.gap)) == (None, b"\n\n")
    await ask(thinking, "Two.", OSS, **form)
    assert thinking.engine.asked[0].context.params.thought.answer == (b"<|channel|>final", b"<|message|>")


def budget(running: Any) -> int | None:
    """Return the reasoning budget in the engine's last request."""
    found: int | None = running.engine.asked[0].context.params.thought.budget
    return found


async def test_a_thought_that_the_prompt_has_ended_is_not_begun_again(
    thinking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = thinking.server.state.models.model.tokenizer
    known = tokenizer.token_id
    monkeypatch.setattr(tokenizer, "token_id", lambda piece: 7 if piece == "<think>" else known(piece))
    for effort, opening in (("medium", 7), ("none", None)):
        await ask(thinking, "{}", response_format={"type": "json_object"}, reasoning_effort=effort)
        assert thinking.engine.asked[0].context.params.thought.opening == opening


async def test_the_server_s_own_choice(tokenizer: Tokenizer) -> None:
    async with running_server(tokenizer, reasoning_format="think", thinking_budget=9) as running:
        plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
        answer = await ask(running, THOUGHT + "Two.", plain)
        assert answer["choices"][0]["message"]["content"] == "Two."
        assert budget(running) == 9
        await ask(running, "Two.", plain, thinking_budget=3)
        assert budget(running) == 3
    async with running_server(tokenizer, reasoning_format="none", thinking_budget=9) as running:
        answer = await ask(running, THOUGHT + "Two.")
        assert answer["choices"][0]["message"]["content"] == THOUGHT + "Two."


async def test_beside_calls_and_thoughts_of_one_form_is_no_other(thinking: Any) -> None:
    refused = await ask(thinking, "", OSS, tools=TOOLS, response_format={"type": "json_object"})
    assert (refused["error"]["param"], "one form" in refused["error"]["message"]) == ("response_format", True)
    answer = await ask(thinking, THOUGHT + '{"a": 5}', tools=TOOLS, response_format={"type": "json_object"})
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, größer.", '{"a": 5}')
