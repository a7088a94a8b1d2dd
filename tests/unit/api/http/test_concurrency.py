"""A long body is processed in a thread, whichever of its fields is long; a short one on the event loop."""

import asyncio
import json
import threading
from functools import partial
from typing import Any

import pytest

from plimsoll_runtime.api import endpoint
from plimsoll_runtime.api.endpoints import tokenize
from plimsoll_runtime.api.http.concurrency import LONG_BODY, SHORT_BODY, offload

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = "x" * 3000
HELLO = {"role": "user", "content": "Hi"}


def chat_body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": list(messages) or [HELLO], **fields}


LONG_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "content": ("/v1/chat/completions", chat_body({"role": "user", "content": LONG})),
    "parts": ("/v1/chat/completions", chat_body({"role": "user", "content": [{"type": "text", "text": LONG}]})),
    "reasoning": ("/v1/chat/completions", chat_body({"role": "assistant", "content": "", "reasoning_content": LONG})),
    "names": ("/v1/chat/completions", chat_body(*[HELLO | {"name": "n" * 256}] * 12)),
    "variables": ("/v1/chat/completions", chat_body(chat_template_kwargs={"note": LONG})),
    "stop strings": ("/v1/chat/completions", chat_body(stop=[LONG])),
    "prompt": ("/v1/completions", {"model": "fake", "prompt": LONG}),
    "prompts": ("/v1/completions", {"model": "fake", "prompt": ["ab"] * 700}),
    "token ids": ("/v1/completions", {"model": "fake", "prompt": [72] * 1000}),
    "echoed token ids": ("/v1/completions", {"model": "fake", "prompt": [72] * 1000, "echo": True}),
    "text to tokenise": ("/tokenize", {"prompt": LONG, "return_token_strs": True}),
    "chat to tokenise": ("/tokenize", {"messages": [{"role": "assistant", "content": "", "reasoning_content": LONG}]}),
    "ids to read": ("/detokenize", {"tokens": [72] * 1000}),
}


@pytest.fixture
def worked_in(running: Any, monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """Return the threads that decoded a body, rendered a chat, encoded a text, or decoded tokens."""
    threads: set[threading.Thread] = set()
    tokenizer = running.server.state.models.model.tokenizer

    def watch(target: Any, name: str) -> None:
        real = getattr(target, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.current_thread())
            return real(*args, **kwargs)

        monkeypatch.setattr(target, name, watched)

    for module in (endpoint, tokenize):
        watch(module, "read_head")
        watch(module, "read_rest")
    for name in ("encode", "decode"):
        watch(tokenizer, name)
    watch(tokenizer.chat_template, "render")
    return threads


@pytest.mark.parametrize("case", LONG_BODIES)
async def test_a_long_body_is_worked_on_beside_the_event_loop(
    running: Any, worked_in: set[threading.Thread], case: str
) -> None:
    path, body = LONG_BODIES[case]
    async with running.http() as http:
        answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert worked_in
    assert threading.current_thread() not in worked_in


SCORED = {"model": "fake", "prompt": [72] * 300}
LONG_SCORES: dict[str, tuple[str, dict[str, Any]]] = {
    "of a prompt": ("/v1/completions", SCORED | {"prompt_logprobs": 5}),
    "of an echo": ("/v1/completions", SCORED | {"echo": True, "logprobs": 5}),
    "of a chat": ("/v1/chat/completions", chat_body(HELLO | {"content": "x" * 300}, prompt_logprobs=5)),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", LONG_SCORES)
async def test_long_scores_are_told_beside_the_event_loop(
    running: Any, monkeypatch: pytest.MonkeyPatch, case: str, stream: bool
) -> None:
    """A short body may request many log probabilities of its prompt, which are built in a thread."""
    path, body = LONG_SCORES[case]
    assert len(json.dumps(body)) < SHORT_BODY
    tokenizer = running.server.state.models.model.tokenizer
    told: dict[threading.Thread, int] = {}
    real = tokenizer.token_text

    def token_text(token_id: int) -> str:
        thread = threading.current_thread()
        told[thread] = told.get(thread, 0) + 1
        return str(real(token_id))

    monkeypatch.setattr(tokenizer, "token_text", token_text)
    async with running.http() as http:
        answer = await http.post(path, json=body | {"stream": stream})
    assert answer.status_code == 200, answer.text
    here = told.pop(threading.current_thread(), 0)
    assert here <= 7 * 6, "output is sent as it arrives"
    assert sum(told.values()) >= 5 * 299


async def test_a_long_body_that_is_refused_is_too(running: Any, worked_in: set[threading.Thread]) -> None:
    async with running.http() as http:
        answer = await http.post("/v1/completions", json={"model": "fake", "prompt": [2**31 - 1] * 1000})
    assert "not in the vocabulary" in answer.json()["error"]["message"]
    assert threading.current_thread() not in worked_in


async def test_a_short_body_is_worked_on_in_place(running: Any, worked_in: set[threading.Thread]) -> None:
    async with running.http() as http:
        assert (await http.post("/v1/chat/completions", json=chat_body())).status_code == 200
        assert (await http.post("/detokenize", json={"tokens": [72]})).status_code == 200
    assert worked_in == {threading.current_thread()}


async def test_the_border_is_the_bodys_size() -> None:
    for size, own in ((SHORT_BODY, True), (SHORT_BODY + 1, False)):
        thread = await offload(size, threading.current_thread)
        assert (thread is threading.current_thread()) == own


async def test_very_long_bodies_are_worked_on_one_by_one() -> None:
    begun, go_on, done = threading.Semaphore(0), threading.Semaphore(0), []

    def work(number: int) -> int:
        begun.release()
        go_on.acquire()
        done.append(number)
        return number

    tasks = [asyncio.create_task(offload(LONG_BODY + 1, partial(work, number))) for number in range(4)]
    await asyncio.to_thread(begun.acquire)
    tasks[2].cancel()
    await asyncio.gather(tasks[2], return_exceptions=True)
    assert await offload(len(LONG), lambda: "others go on") == "others go on"
    assert not begun.acquire(blocking=False)
    go_on.release(4)
    assert [await tasks[number] for number in (0, 1, 3)] == [0, 1, 3]
    assert done == [0, 1, 3]
