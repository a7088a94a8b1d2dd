"""A prompt that is too long is refused with numbers and in words that clients recognise, at every endpoint."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo

pytestmark = pytest.mark.asyncio(loop_scope="module")

MOST = 4096
KNOWN = (
    re.compile(r"this model's maximum context length is", re.IGNORECASE),  # litellm
    re.compile(r"please reduce the length of", re.IGNORECASE),  # OpenHands
    re.compile(r"maximum context length is \d+ tokens", re.IGNORECASE),  # Pi, opencode
    re.compile(r"context_length_exceeded"),  # LangChain
)
LONG, HUGE = "x" * 5000, "x" * 400_000
GENERATING: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 1},
    "/v1/responses": lambda text: {"input": text},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 5},
}
EMBEDDING: dict[str, Callable[[str], dict[str, Any]]] = {
    "/v1/embeddings": lambda text: {"input": text},
    "/v1/score": lambda text: {"text_1": "a", "text_2": text},
    "/v1/rerank": lambda text: {"query": "a", "documents": ["b", text]},
}


async def refused(running: Any, path: str, body: dict[str, Any]) -> str:
    """Return the message of the error."""
    async with running.http() as http:
        answer = await http.post(path, json={"model": "fake"} | body)
    error = answer.json()["error"]
    code = error["details"]["error_code"] if path == "/v1/messages" else error["code"]
    assert (answer.status_code, code) == (400, "context_length_exceeded")
    message: str = error["message"]
    assert [pattern for pattern in KNOWN if not pattern.search(message)] == []
    assert f" {MOST} tokens" in message
    return message


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("text", [LONG, HUGE], ids=["long", "huge"])
async def test_generating(running: Any, path: str, text: str) -> None:
    message = await refused(running, path, GENERATING[path](text))
    counts = [int(number) for number in re.findall(r"\d+", message)]
    assert any(5000 <= count <= 6100 if text is LONG else MOST < count < 400_000 for count in counts), message
    assert message.startswith("prompt is too long: ") == (path == "/v1/messages")


@pytest.mark.matrix(3)
@pytest.mark.parametrize("path", EMBEDDING)
@pytest.mark.parametrize("text", [LONG, HUGE], ids=["long", "huge"])
async def test_vectors(keep_server: Callable[..., Awaitable[Any]], path: str, text: str) -> None:
    message = await refused(await keep_server(pooling=PoolingInfo("embed", 4)), path, EMBEDDING[path](text))
    assert ("'truncate_prompt_tokens': -1" in message) == (text is LONG)


async def test_the_answer_counts_where_its_length_is_asked_for(running: Any) -> None:
    path, hello = "/v1/chat/completions", GENERATING["/v1/chat/completions"]("Hi")
    assert await refused(running, path, hello | {"max_tokens": MOST - 4}) == (
        "This model's maximum context length is 4096 tokens. However, you requested 4097 tokens (5 in the messages, "
        "4092 in the completion). Please reduce the length of the messages or completion "
        "(context_length_exceeded)."
    )
    prompt = [1] * MOST
    assert await refused(running, "/v1/completions", {"prompt": prompt, "max_tokens": 7}) == (
        "This model's maximum context length is 4096 tokens. However, you requested 4103 tokens (4096 in the prompt, "
        "7 in the completion). Please reduce the length of the prompt or completion "
        "(context_length_exceeded)."
    )
    assert await refused(running, path, GENERATING[path]("x" * (MOST - 3))) == (
        "This model's maximum context length is 4096 tokens. However, your messages resulted in 4096 tokens, and the "
        "output needs one more. Please reduce the length of the messages (context_length_exceeded)."
    )


async def test_a_text_that_is_not_even_tokenised_says_what_it_has_at_least(running: Any) -> None:
    longest = 4 * len("<|assistant|>")  # the vocabulary's longest piece, with space for a normalizer
    message = await refused(running, "/v1/completions", {"prompt": HUGE})
    assert f"at least {-(-len(HUGE) // longest)} tokens ({len(HUGE)} characters)" in message
