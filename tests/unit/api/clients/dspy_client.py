"""Programs of DSPy; runs in the environment of `make clients`.

`dspy_client.py SCRIPTED TINY` prints results as JSON. SCRIPTED is the URL of a server with scripted answers, TINY that
of a small real model.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # do not fetch prices

import dspy
from client_support.weather import HEARD, Forecast, get_weather
from dspy.utils.exceptions import DSPyError


class LM(dspy.LM):  # type: ignore[misc]
    """States the model's abilities; DSPy asks models that it does not know for plain text only."""

    supports_function_calling = True
    supports_response_schema = True
    supported_params = frozenset({"max_tokens", "response_format", "seed", "temperature", "tools", "tool_choice"})


def model(url: str, name: str, **more: Any) -> LM:
    return LM(f"openai/{name}", api_base=f"{url}/v1", api_key="none", cache=False, num_retries=0, **more)


class Calling(dspy.Signature):  # type: ignore[misc]
    """Call a tool."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    outputs: dspy.ToolCalls = dspy.OutputField()


class Telling(dspy.Signature):  # type: ignore[misc]
    """Tell the weather."""

    question: str = dspy.InputField()
    forecast: Forecast = dspy.OutputField()


def loop() -> dict[str, Any]:
    found = dspy.ReAct("question -> answer", tools=[get_weather], max_iters=3)(question="Weather in Bonn?")
    return {"text": found.answer, "heard": list(HEARD)}


def calls(**settings: Any) -> Any:
    """The calls that come back through the API's `tool_calls`, or the name of the error."""
    with dspy.context(adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        try:
            found = dspy.Predict(Calling)(question="Weather?", tools=[dspy.Tool(get_weather)], config=settings)
        except DSPyError as error:
            return type(error).__name__
    return [[each.name, each.args] for each in found.outputs.tool_calls]


def long() -> str:
    try:
        dspy.Predict("question -> answer")(question="x" * 5000)
    except DSPyError as error:
        return type(error).__name__
    return ""


def typed(url: str) -> Any:
    with dspy.context(lm=model(url, "tiny", max_tokens=300, seed=1), adapter=dspy.JSONAdapter()):
        return dspy.Predict(Telling)(question="Weather?").forecast.model_dump()


if __name__ == "__main__":
    scripted, tiny = sys.argv[1:]
    with dspy.context(lm=model(scripted, "fake", max_tokens=1000), adapter=dspy.ChatAdapter()):
        told = {"loop": loop(), "calls": calls(), "cut": calls(max_tokens=60), "long": long()}
    print(json.dumps(told | {"typed": typed(tiny)}))
