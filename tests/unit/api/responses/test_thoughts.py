"""Thoughts of a response: items before what is said, counted, and levels that the model does not know."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import openai
import pytest
import pytest_asyncio

from plimsoll_runtime.text.chat import ChatTemplate

from .conftest import TEMPLATE

if TYPE_CHECKING:
    from tests.unit.api.responses.conftest import Talk

pytestmark = pytest.mark.asyncio(loop_scope="module")

THOUGHT = "<think>\nHm.\n</think>"


@pytest_asyncio.fixture(loop_scope="module")
async def thinks(talk: Talk) -> AsyncIterator[Talk]:
    """The same, of a model that writes thoughts."""
    tokenizer = talk.running.server.state.models.model.tokenizer
    before, tokenizer.chat_template = tokenizer.chat_template, ChatTemplate(TEMPLATE + "{# </think> #}")
    yield talk
    tokenizer.chat_template = before


async def test_they_are_items_and_counted(thinks: Talk) -> None:
    thinks.answers(f"{THOUGHT}\n\nTwo.")
    response = await thinks.create(extra_body={"thinking_budget": 9})
    assert thinks.engine.asked[-1].params.thought.budget == 9
    thought, message = response.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert [part.text for part in thought.content] == ["Hm."]
    assert (message.type, response.output_text) == ("message", "Two.")
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len(THOUGHT)


async def test_they_are_streamed_before_the_text(thinks: Talk) -> None:
    thinks.answers(f"{THOUGHT}\n\nTwo.")
    events = await thinks.stream()
    kinds = [event.type for event in events if event.type.endswith("_text.delta")]
    assert kinds == ["response.reasoning_text.delta"] * 3 + ["response.output_text.delta"] * 4
    assert events[-1].response.usage.output_tokens_details.reasoning_tokens == len(THOUGHT)


async def test_a_level_that_the_template_cannot_be_told(thinks: Talk) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await thinks.create(reasoning={"effort": "high"})
    assert refused.value.param == "reasoning.effort"
    with pytest.raises(openai.BadRequestError, match="effort"):
        await thinks.create(reasoning={"effort": "much"})
