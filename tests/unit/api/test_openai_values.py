"""Every value and every object in OpenAI's types is accepted, except those that are refused on purpose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from server_support.openai_values import fields_of, is_within, samples

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo

from .conftest import template

pytestmark = pytest.mark.asyncio(loop_scope="module")

AS_HERMES = (
    "{% for t in tools or [] %}{{ t.function.name }}<tool_call>{% endfor %}{{ verbosity }}"
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}<|assistant|>"
)
FUNCTION: dict[str, Any] = {"name": "x"}
TOOL: dict[str, Any] = {"type": "function", "function": FUNCTION}
FLAT_TOOL: dict[str, Any] = {"type": "function", "name": "x"}

TEXT_ONLY = "models here read and write text only"
FREE = "arguments that are no JSON are not enforced"
HOSTED = "OpenAI runs these tools itself"
NOT_KEPT = "nothing of this is kept here"
_ITEMS = """file_search_call computer_call web_search_call tool_search_call tool_search_output additional_tools
    image_generation_call code_interpreter_call local_shell_call shell_call apply_patch_call mcp_list_tools
    mcp_approval_request mcp_approval_response mcp_call computer_call_output local_shell_call_output shell_call_output
    apply_patch_call_output program program_output"""
_TOOLS = """file_search computer computer_use_preview web_search mcp code_interpreter programmatic_tool_calling
    image_generation local_shell shell namespace tool_search web_search_preview apply_patch"""
_CHOICES = "file_search mcp programmatic_tool_calling apply_patch shell"
REFUSED: dict[str, dict[str, str]] = {
    "/v1/chat/completions": {
        "messages[][user].content[][image_url]": TEXT_ONLY,
        "messages[][user].content[][input_audio]": TEXT_ONLY,
        "messages[][user].content[][file]": TEXT_ONLY,
        "messages[][assistant].tool_calls[][custom]": FREE,
        "audio": TEXT_ONLY,
        "modalities[]=audio": TEXT_ONLY,
        "tool_choice[custom]": FREE,
        "tools[][custom]": FREE,
        "web_search_options": HOSTED,
    },
    "/v1/completions": {},
    "/v1/responses": {
        "access_programs": "access programs are not supported",
        "context_management": "contexts are not compacted",
        "conversation": NOT_KEPT,
        "image": TEXT_ONLY,
        "input[][user].content[][input_image]": TEXT_ONLY,
        "input[][user].content[][input_file]": TEXT_ONLY,
        "input[][function_call_output].output[][input_image]": TEXT_ONLY,
        "input[][function_call_output].output[][input_file]": TEXT_ONLY,
        "input[][configuration_update]": "a turn's fields say how it is answered",
        "input[][compaction]": "contexts are not compacted",
        "input[][compaction_trigger]": "contexts are not compacted",
        "input[][custom_tool_call]": FREE,
        "input[][custom_tool_call_output]": FREE,
        "moderation": "moderation is not supported",
        "prompt": NOT_KEPT,
        "tool_choice[custom]": FREE,
        "tools[][custom]": FREE,
        **{f"input[][{item}]": HOSTED for item in _ITEMS.split()},
        **{f"tools[][{tool}]": HOSTED for tool in _TOOLS.split()},
        **{f"tool_choice[{tool}]": HOSTED for tool in _CHOICES.split()},
    },
    "/v1/embeddings": {},
}
PARAMS = {
    "/v1/chat/completions": chat_create_params.CompletionCreateParams,
    "/v1/completions": completion_create_params.CompletionCreateParams,
    "/v1/responses": response_create_params.ResponseCreateParams,
    "/v1/embeddings": embedding_create_params.EmbeddingCreateParams,
}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
SMALLEST = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "a"}}
GIVEN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        ".arguments": "{}",
        "[assistant]": {"content": "a"},
        ".allowed_tools.tools[]": TOOL,
    },
    "/v1/responses": {
        ".arguments": "{}",
        "tool_choice.tools[]": FLAT_TOOL,
        "tool_choice[allowed_tools].tools[]": FLAT_TOOL,
        "[function_call_output]": {"call_id": "x"},
    },
}
"""Values that OpenAI's types leave open and its pages name."""
BESIDE: dict[str, dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {
        "tool_choice": {"tools": [TOOL]},
        "function_call": {"functions": [FUNCTION]},
        "stream_options": {"stream": True},
    },
    "/v1/completions": {"stream_options": {"stream": True}},
    "/v1/responses": {"tool_choice": {"tools": [FLAT_TOOL]}, "stream_options": {"stream": True}},
}
"""Fields that others require."""
TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"type": "function_call", "call_id": "x", "name": "x", "arguments": "{}"},
]


def body_of(path: str, name: str, value: Any) -> dict[str, Any]:
    if path == "/v1/responses" and name == "input" and isinstance(value, list):
        value = [*TURN, *value]
    beside = BESIDE.get(path, {}).get(name, {})
    return {"model": "fake"} | SMALLEST.get(path, {"input": "a"}) | beside | {name: value}


async def refused_at(running: Any, path: str) -> dict[str, str]:
    """Return where a value or an object is refused, and with which words."""
    refused: dict[str, str] = {}
    async with running.http() as http:
        for name, kind in fields_of(PARAMS[path]).items():
            for sample in samples(kind, name, GIVEN.get(path, {})):
                open_value = sample.place == name and not isinstance(sample.value, dict)
                if name == "model" or open_value or is_within(sample.place, refused):
                    continue
                answer = await http.post(path, json=body_of(path, name, sample.value))
                if answer.status_code == 400:
                    refused[sample.place] = answer.json()["error"]["message"]
    return refused


@pytest.mark.matrix(2)
@pytest.mark.parametrize("path", PARAMS)
async def test_values(running: Any, keep_server: Callable[..., Awaitable[Any]], path: str) -> None:
    server = await keep_server(pooling=PoolingInfo("embed", 4)) if path == "/v1/embeddings" else running
    with template(running.server.state.models.model.tokenizer, AS_HERMES):
        refused = await refused_at(server, path)
    known: Mapping[str, str] = REFUSED[path]
    assert {place: words for place, words in refused.items() if not is_within(place, known)} == {}
    assert [place for place in known if not any(is_within(each, [place]) for each in refused)] == [], "taken by now"


SERVICE = ["auto", "default", "flex", "scale", "priority", None]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_values_that_no_type_names(running: Any, path: str) -> None:
    """Numbers at the ends of OpenAI's ranges."""
    texts: list[dict[str, Any]] = [
        {"top_p": 0},
        {"top_p": 1},
        {"temperature": 0},
        {"temperature": 2},
        *({"service_tier": s} for s in SERVICE),
    ]
    chats: list[dict[str, Any]] = [{"logprobs": logprobs, "top_logprobs": 0} for logprobs in (None, False, True)]
    async with running.http() as http:
        for fields in [*texts, *(chats if path == "/v1/chat/completions" else [])]:
            answer = await http.post(path, json=body_of(path, "stream", False) | fields)
            assert answer.status_code == 200, (fields, answer.text)
            if fields in chats:
                assert (answer.json()["choices"][0]["logprobs"] is None) == (not fields["logprobs"])


async def test_a_nucleus_of_nothing_is_the_likeliest_token(running: Any) -> None:
    async with running.http() as http:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            await http.post(path, json=body_of(path, "top_p", 0) | {"temperature": 1})
            assert running.engine.asked[-1].context.params.greedy, path


async def test_a_response_has_openais_temperatures(running: Any) -> None:
    async with running.http() as http:
        for temperature in (9, 2.1, -0.5):
            answer = await http.post("/v1/responses", json={"model": "fake", "input": "a", "temperature": temperature})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "temperature")
            assert f"at most 2, not {temperature}" in error["message"]


async def test_a_cache_is_not_warmed_by_itself(running: Any) -> None:
    async with running.http() as http:
        for path in ("/v1/chat/completions", "/v1/responses"):
            for prewarm, status in ((False, 200), (True, 400)):
                answer = await http.post(path, json=body_of(path, "prompt_cache_options", {"prewarm": prewarm}))
                assert answer.status_code == status, answer.text
