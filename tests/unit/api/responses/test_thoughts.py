"""Reasoning in responses: separate items, streamed, as a summary if requested, and sent back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import openai
import pytest
import pytest_asyncio

from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server, template
from .conftest import Talk

if TYPE_CHECKING:
    from openai.types.responses import ResponseReasoningItem

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>arguments{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
THOUGHT = "<think>\nHm, größer.\n</think>\n\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker(tokenizer: Tokenizer) -> AsyncIterator[Any]:
    with template(tokenizer, TEMPLATE):
        async with running_server(tokenizer) as running:
            yield running


@pytest.fixture
def talk(thinker: Any) -> Talk:
    thinker.engine.reset()
    return Talk(thinker)


def thoughts_of(response: Any) -> ResponseReasoningItem:
    item: ResponseReasoningItem = response.output[0]
    assert item.type == "reasoning"
    return item


@pytest.mark.parametrize("summary", [None, "auto"])
async def test_they_are_an_item_before_the_words(talk: Talk, summary: Any) -> None:
    talk.answers(THOUGHT + "Two.")
    fields = {} if summary is None else {"reasoning": {"summary": summary}}
    response = await talk.create(**fields)
    assert [item.type for item in response.output] == ["reasoning", "message"]
    thoughts = thoughts_of(response)
    parts = thoughts.content if summary is None else thoughts.summary
    assert [part.text for part in parts or ()] == ["Hm, größer."]
    assert response.output_text == "Two."
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len(THOUGHT.rstrip().encode())
    assert response.reasoning is not None
    assert response.reasoning.summary == summary


@pytest.mark.parametrize("summary", [None, "detailed"])
async def test_they_stream(talk: Talk, summary: Any) -> None:
    talk.answers(THOUGHT + "Two.")
    events = await talk.stream(reasoning={"summary": summary})
    kind = "response.reasoning_text" if summary is None else "response.reasoning_summary_text"
    told = "".join(event.delta for event in events if event.type == f"{kind}.delta")
    assert told == "Hm, größer."
    assert [event.text for event in events if event.type == f"{kind}.done"] == [told]
    words = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in words) == "Two."
    assert {event.output_index for event in words} == {1}
    async with talk.client.responses.stream(model="fake", input="Hi") as stream:
        assert (await stream.get_final_response()).output_text == "Two."


async def test_they_have_no_log_probabilities(talk: Talk) -> None:
    talk.answers(THOUGHT + "Two.")
    response = await talk.create(include=["message.output_text.logprobs"])
    message = response.output[1]
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert "".join(token.token for token in part.logprobs or ()).strip().startswith("Two.")


async def test_they_are_given_back(talk: Talk) -> None:
    """By the response's id, or as the items that the client got."""
    talk.answers(THOUGHT + "Two.")
    first = await talk.create()
    summarised = await talk.create(reasoning={"summary": "auto"})
    shown = set()
    for fields in (
        {"previous_response_id": first.id, "input": "And?"},
        {"previous_response_id": summarised.id, "input": "And?"},
        {"input": [{"role": "user", "content": "Hi"}, *(item.to_dict() for item in first.output), user("And?")]},
    ):
        await talk.create(**fields)
        shown.add(talk.shown)
    assert shown == {"[user]Hi[assistant]<think>Hm, größer.</think>Two.[user]And?[assistant]"}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_they_are_switched_off_and_bounded(talk: Talk) -> None:
    await talk.create(reasoning={"effort": "none"})
    assert talk.shown.endswith("[assistant]<think>\n\n</think>\n\n")
    await talk.create(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert talk.shown.endswith("[assistant]<think>\n\n</think>\n\n")
    await talk.create(extra_body={"thinking_budget": 7})
    assert talk.engine.asked[-1].context.params.thought.budget == 7
    await talk.create(reasoning={"effort": "high"})
    assert talk.shown.endswith("[assistant]")
    with pytest.raises(openai.BadRequestError) as refused:
        await talk.create(reasoning={"effort": "enormous"})
    assert refused.value.param == "reasoning.effort"


async def test_an_answer_that_is_cut_while_it_thinks(talk: Talk) -> None:
    talk.answers(THOUGHT + "Two.")
    response = await talk.create(max_output_tokens=12)
    assert (response.status, [item.type for item in response.output]) == ("incomplete", ["reasoning"])
    assert thoughts_of(response).status == "incomplete"
