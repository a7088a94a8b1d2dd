"""A server whose model calls tools in the format of Hermes, and readers that are as strict as the client's types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from plimsoll_runtime.text.tokenizer import Tokenizer

from ..conftest import running_server, template

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}[{{ m.role }}"
    "{% if m.name %} {{ m.name }}{% endif %}] {% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% endfor %}{{ note }}"
)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Talk:
    """Sends requests to a server with a fake engine."""

    def __init__(self, running: Any) -> None:
        self.running = running
        self.engine = running.engine
        self.client = running.openai()

    @property
    def shown(self) -> str:
        """Return the last prompt of the model."""
        return bytes(token for token in self.engine.asked[-1].prompt_token_ids if token < 256).decode()

    def answers(self, text: str) -> None:
        self.engine.answer = text.encode()

    async def create(self, **fields: Any) -> Response:
        """Create a response, checked against the client's types."""
        raw = await self.client.responses.with_raw_response.create(**({"model": "fake", "input": "Hi"} | fields))
        return Response.model_validate_json(raw.http_response.content)

    async def stream(self, **fields: Any) -> list[Any]:
        """Return the events of a stream, read strictly, and the client helper's response."""
        body = {"model": "fake", "input": "Hi", "stream": True} | fields
        async with self.running.http() as http:
            return events_of(await http.post("/v1/responses", json=body))


def events_of(answer: httpx.Response) -> list[Any]:
    """Return all events by name."""
    assert answer.status_code == 200, answer.text
    *blocks, rest = answer.text.split("\n\n")
    assert rest == ""
    events = []
    for block in blocks:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = EVENTS.validate_json(data.removeprefix("data: "))
        assert name == f"event: {event.type}"
        events.append(event)
    return events


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tokenizer: Tokenizer) -> AsyncIterator[Any]:
    with template(tokenizer, TEMPLATE):
        async with running_server(tokenizer) as running:
            yield running


@pytest.fixture
def talk(server: Any) -> Talk:
    """A client of the server, with its engine in the initial state. A test's loop must be the module's."""
    server.engine.reset()
    return Talk(server)
