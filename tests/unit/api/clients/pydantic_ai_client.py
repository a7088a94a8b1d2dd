"""Agents of pydantic-ai; runs in the environment of `make clients`.

`pydantic_ai_client.py SCRIPTED TINY` prints results as JSON, for chat completions and for responses. SCRIPTED is the
URL of a server with scripted answers, TINY that of a small real model.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from client_support.weather import HEARD, Forecast, get_weather
from pydantic_ai import Agent, NativeOutput, ToolOutput, capture_run_messages
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def loop(model: Any) -> dict[str, Any]:
    HEARD.clear()
    return {"text": Agent(model, tools=[get_weather]).run_sync("Weather in Bonn?").output, "heard": list(HEARD)}


def cut(model: Any) -> dict[str, Any]:
    """The call is cut off; the next request has it in its history."""
    HEARD.clear()
    agent = Agent(model, tools=[get_weather], retries=0)
    with capture_run_messages() as messages:
        try:
            agent.run_sync("Weather in Bonn?", model_settings={"max_tokens": 60})
        except AgentRunError as error:
            found = type(error).__name__
        else:
            found = ""
    text = agent.run_sync("And now?", message_history=messages).output
    return {"error": found, "text": text, "heard": list(HEARD)}


def long(model: Any) -> str:
    try:
        Agent(model).run_sync("x" * 5000)
    except AgentRunError as error:
        return str(error)
    return ""


def typed(model: Any) -> dict[str, Any]:
    """Typed output as `response_format`, strict or not, and as the arguments of a tool."""
    asked: dict[str, Any] = {
        "form": NativeOutput(Forecast),
        "strict form": NativeOutput(Forecast, strict=True),
        "tool": ToolOutput(Forecast),
    }
    settings: Any = {"max_tokens": 200, "seed": 1}
    return {
        name: Agent(model, output_type=form, retries=0)
        .run_sync("Weather?", model_settings=settings)
        .output.model_dump()
        for name, form in asked.items()
    }


def told(kind: Any, scripted: str, tiny: str) -> dict[str, Any]:
    ours, small = (
        kind(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
        for name, url in (("fake", scripted), ("tiny", tiny))
    )
    return {"loop": loop(ours), "cut": cut(ours), "long": long(ours), "typed": typed(small)}


if __name__ == "__main__":
    print(json.dumps([told(kind, *sys.argv[1:]) for kind in (OpenAIChatModel, OpenAIResponsesModel)]))
