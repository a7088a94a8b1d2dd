"""Agents of smolagents; runs in the environment of `make clients`.

`smolagents_client.py SCRIPTED TINY` prints results as JSON. SCRIPTED is the URL of a server with scripted answers, TINY
that of a small real model.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from client_support.weather import HEARD, get_weather
from smolagents import AgentError, CodeAgent, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import CODEAGENT_RESPONSE_FORMAT
from smolagents.monitoring import LogLevel

WEATHER = tool(get_weather)


def model(url: str, name: str = "fake", **more: Any) -> OpenAIModel:
    return OpenAIModel(name, api_base=f"{url}/v1", api_key="none", client_kwargs={"max_retries": 0}, **more)


def loop(kind: Any, url: str, **more: Any) -> dict[str, Any]:
    HEARD.clear()
    agent = kind(tools=[WEATHER], model=model(url, **more), max_steps=3, verbosity_level=LogLevel.OFF)
    agent.prompt_templates["system_prompt"] = "Answer with tools."
    return {"text": agent.run("Weather in Bonn?"), "heard": list(HEARD)}


def long(url: str) -> str:
    try:
        ToolCallingAgent(tools=[WEATHER], model=model(url), verbosity_level=LogLevel.OFF).run("x" * 5000)
    except AgentError as error:
        return str(error)
    return ""


def typed(url: str) -> dict[str, Any]:
    """The schema that `CodeAgent` requests: a thought and a program."""
    asked = [{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}]
    asking = model(url, "tiny", response_format=CODEAGENT_RESPONSE_FORMAT, max_tokens=1500)
    for seed in range(8):  # its strings have any length, and a model of random weights may not end one in time
        answer = asking.generate(asked, seed=seed)
        if answer.raw.choices[0].finish_reason == "stop":
            form: dict[str, Any] = json.loads(answer.content)
            return form
    raise AssertionError("no answer was whole")


if __name__ == "__main__":
    scripted, tiny = sys.argv[1:]
    print(
        json.dumps(
            {
                "calls": loop(ToolCallingAgent, scripted),
                "code": loop(CodeAgent, scripted),
                "cut": loop(ToolCallingAgent, scripted, max_tokens=60),
                "long": long(scripted),
                "typed": typed(tiny),
            }
        )
    )
