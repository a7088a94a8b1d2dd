"""Agents of other projects run tool loops and get structured answers; calls are cut and prompts are too long.

The scripted server's tokens are bytes: `max_tokens=60` cuts CALL, and 5,000 bytes exceed its context of 4,096.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plimsoll_runtime.text.tokenizer import Tokenizer

from .conftest import CLIENTS, HERE, HINT, WAYS, StandIn, Ways, client_python, run_client, standing_in

pytestmark = pytest.mark.long

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
TEXT = "It rains."
SUPPORT = HERE.parents[2] / "support"
DONE = {"text": TEXT, "heard": ["Bonn"]}
LOOP = (CALL, TEXT)
TOO_LONG = "This model's maximum context length is 4096 tokens. However, your messages resulted in "


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def agents(stand_in: StandIn, tiny: Ways, way: str, program: str, *command: str | Path) -> Any:
    """Runs a client program against the scripted server and the tiny model; returns the JSON it prints."""
    urls = stand_in.ways.url(way), tiny.url(way)
    environment = {"CLIENTS": str(CLIENTS), "PYTHONPATH": str(SUPPORT)}
    return await asyncio.to_thread(run_client, command[0], HERE / program, *urls, *command[1:], **environment)


def is_forecast(found: Any) -> bool:
    return set(found) == {"sky", "degrees"} and found["sky"] in ("clear", "grey") and -60 <= found["degrees"] <= 60


def assert_history_has_the_cut_call(stand_in: StandIn) -> None:
    assert "Weather in Bonn?get_weather{" in stand_in.shown
    assert stand_in.shown.endswith("And now?")


@pytest.mark.long
async def test_pydantic_ai(tokenizer: Tokenizer, tiny: Ways, way: str) -> None:
    python = client_python("pydantic_ai")
    async with standing_in(tokenizer) as stand_in:
        stand_in.follows(*2 * (*LOOP, *LOOP))
        for told in await agents(stand_in, tiny, way, "pydantic_ai_client.py", python):
            assert told["loop"] == DONE
            assert told["cut"] == {"error": "IncompleteToolCall", "text": TEXT, "heard": []}
            assert TOO_LONG in told["long"]
            assert set(told["typed"]) == {"form", "strict form", "tool"}
            assert all(map(is_forecast, told["typed"].values()))
        assert_history_has_the_cut_call(stand_in)


async def test_vercels_ai_sdk(tokenizer: Tokenizer, tiny: Ways, way: str) -> None:
    node = shutil.which("node")
    if node is None or not (CLIENTS / "node_modules" / "ai").is_dir():
        pytest.skip(f"node is not on this machine, or the AI SDK is {HINT}")
    async with standing_in(tokenizer) as stand_in:
        stand_in.follows(*LOOP, *LOOP, *LOOP)
        told = await agents(stand_in, tiny, way, "vercel.mjs", node)
        assert told["whole"] == told["streamed"] == DONE | {"finishReason": "stop"}
        assert told["cut"] == {"finishReason": "length", "invalid": [True], "text": TEXT, "heard": []}
        long = told["long"]
        assert (long["name"], long["status"], long["retryable"]) == ("AI_APICallError", 400, False)
        assert long["message"].startswith(TOO_LONG)
        assert_history_has_the_cut_call(stand_in)
    typed = told["typed"]
    assert is_forecast(typed["output"])
    assert typed["streamed"] == typed["output"]
    assert typed["parts"] > 1
    assert all(map(is_forecast, typed["list"]))


@pytest.mark.long
async def test_smolagents(tokenizer: Tokenizer, tiny: Ways, way: str) -> None:
    """Both kinds of agent: one calls tools through the API, the other writes Python that calls them."""
    python = client_python("smolagents")
    final = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "It rains."}}\n</tool_call>'
    programs = [f"<code>\n{line}\n</code>" for line in ('print(get_weather("Bonn"))', 'final_answer("It rains.")')]
    async with standing_in(tokenizer) as stand_in:
        stand_in.follows(CALL, final, *programs, CALL, final)
        told = await agents(stand_in, tiny, way, "smolagents_client.py", python)
        assert told["calls"] == told["code"] == DONE
        # smolagents ignores finish_reason and passes incomplete arguments to the tool as one string.
        assert told["cut"]["heard"] == ['{"city": "B']
        assert """'arguments': '{"city": "B'}}]Observation""" in stand_in.shown
        assert TOO_LONG in told["long"]
    assert set(told["typed"]) == {"thought", "code"}


async def test_dspy(tokenizer: Tokenizer, tiny: Ways, way: str) -> None:
    """`ReAct` writes its steps as fields in the text; a signature with tools uses the API's tool calls."""
    python = client_python("dspy")
    script = [
        {"next_thought": "so", "next_tool_name": "get_weather", "next_tool_args": '{"city": "Bonn"}'},
        {"next_thought": "so", "next_tool_name": "finish", "next_tool_args": "{}"},
        {"reasoning": "so", "answer": TEXT},
    ]
    async with standing_in(tokenizer) as stand_in:
        stand_in.follows(*map(in_fields, script), CALL, CALL)
        told = await agents(stand_in, tiny, way, "dspy_client.py", python)
    assert told["loop"] == DONE
    assert told["calls"] == [["get_weather", {"city": "Bonn"}]]
    assert told["cut"] == [["get_weather", {"partial_json": '{"city": "B'}]]
    assert told["long"] == "ContextWindowExceededError"
    assert is_forecast(told["typed"])


def in_fields(values: dict[str, str]) -> str:
    """An answer in the format of DSPy's ChatAdapter."""
    return "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in (values | {"completed": ""}).items())


@pytest.mark.long
async def test_the_command_llm(tokenizer: Tokenizer, tiny: Ways, way: str, tmp_path: Path) -> None:
    """`llm` stores no conversation that ended with an error: `--continue` continues the one before the cut call."""
    python = client_python("llm")
    async with standing_in(tokenizer) as stand_in:
        stand_in.follows(*LOOP, *LOOP, CALL, TEXT)
        told = await agents(stand_in, tiny, way, "llm_client.py", python, tmp_path)
        assert told["whole"] == told["streamed"] == told["after"] == [0, TEXT]
        assert stand_in.shown.endswith(f"rain in Bonn{TEXT}And now?")
    assert [told["cut"][0], told["long"][0]] == [1, 1]
    assert TOO_LONG in told["long"][1]
    assert is_forecast(json.loads(told["typed"][1]))
