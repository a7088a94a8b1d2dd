"""Chat: the conversation, its commands, and finding its server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from local_support.fake_gateway import FakeGateway, delta, events, fake_gateway

from plimsoll_runtime.local.chat import terminal
from plimsoll_runtime.local.chat.conversation import AskError, Pace, Server, Talk, Usage
from plimsoll_runtime.local.chat.server import ServerRequest, find
from plimsoll_runtime.local.chat.terminal import CommandError, EndOfTalk
from plimsoll_runtime.utils.progress import silent


@pytest.fixture
async def gateway(unused_tcp_port: int) -> AsyncIterator[FakeGateway]:
    async with fake_gateway(unused_tcp_port) as made:
        yield made


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


def talk_to(gateway: FakeGateway) -> Talk:
    return Talk(Server(gateway.url, "secret"), "org/m", settings={"max_tokens": 5})


async def say(talk: Talk, session: aiohttp.ClientSession, text: str) -> str:
    async with aclosing(talk.say(session, text)) as chunks:
        return "".join([chunk.text async for chunk in chunks])


END = json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]})
USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})


async def test_what_was_said_is_sent_again(gateway: FakeGateway, session: aiohttp.ClientSession) -> None:
    talk = talk_to(gateway)
    talk.system = "Be brief."
    gateway.answer = events(delta("Bon"), delta("jour"), END, USAGE, "[DONE]")
    assert await say(talk, session, "Hello in French?") == "Bonjour"
    assert talk.finish_reason == "length"
    assert talk.pace is not None
    assert talk.pace.usage == Usage(7, 2, 0)
    await say(talk, session, "And in German?")
    (first, key), (second, _) = gateway.requests
    assert key == "Bearer secret"
    assert first["max_tokens"] == 5
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello in French?"},
    ]
    assert second["messages"][2:] == [
        {"role": "assistant", "content": "Bonjour"},
        {"role": "user", "content": "And in German?"},
    ]


async def test_what_came_before_a_failure_is_kept(gateway: FakeGateway, session: aiohttp.ClientSession) -> None:
    talk = talk_to(gateway)
    gateway.answer = events(delta("Bon"), json.dumps({"error": {"message": "gone"}}))
    with pytest.raises(AskError, match="gone"):
        await say(talk, session, "Hello?")
    assert [m["content"] for m in talk.said] == ["Hello?", "Bon"]

    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long"}}, status=400)

    gateway.answer = refuse
    with pytest.raises(AskError, match="too long"):
        await say(talk, session, "x" * 100)
    assert [m["content"] for m in talk.said] == ["Hello?", "Bon"], "as if it had not been said"


async def test_an_answer_that_is_left_early(gateway: FakeGateway, session: aiohttp.ClientSession) -> None:
    talk = talk_to(gateway)
    gateway.answer = events(delta("Bon"), delta("jour"), USAGE, "[DONE]")
    async with aclosing(talk.say(session, "Hello?")) as chunks:
        assert (await anext(chunks)).text == "Bon"
    assert talk.said[-1] == {"role": "assistant", "content": "Bon"}


def test_a_pace_in_words() -> None:
    assert str(Pace(Usage(10, 21, 0), 0.1, 2.0)) == "21 tokens, 10.0 tokens/s, first after 0.10 s"
    assert str(Pace(Usage(10, 1, 8), 0.1, 0.0)) == "1 tokens, first after 0.10 s (8 of 10 prompt tokens were cached)"


def test_commands(tmp_path: Path) -> None:
    talk = Talk(Server("http://x"), "a", said=[{"role": "user", "content": "Hi"}])

    def run(line: str) -> str:
        return terminal.run_command(line, talk, lambda: ["a", "b"])

    assert run("/system") == "there is no system message"
    run("/system Be brief.")
    assert talk.messages[0] == {"role": "system", "content": "Be brief."}
    assert run("/model") == "* a\n  b"
    run("/model b")
    assert talk.model == "b"
    run(f"/save {tmp_path / 'talk.json'}")
    assert json.loads((tmp_path / "talk.json").read_text()) == {"model": "b", "messages": talk.messages}
    run(f"/save {tmp_path / 'talk.md'}")
    assert (tmp_path / "talk.md").read_text() == "# b\n\n**system**\n\nBe brief.\n\n**user**\n\nHi\n"
    assert run("/clear") == "removed 1 messages"
    run("/system none")
    assert talk.messages == []
    assert all(word in run("/help") for word in terminal.COMMANDS)
    with pytest.raises(EndOfTalk):
        run("/exit")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/sytsem x", "unknown command /sytsem; choose one of: /help, /system"),
        ("/model c", "no model 'c'; choose one of: a, b"),
        ("/save", "needs a file"),
        ("/save /nowhere/at/all.json", "cannot be written: No such file"),
    ],
)
def test_commands_that_cannot_be_carried_out(line: str, told: str) -> None:
    with pytest.raises(CommandError, match=told):
        terminal.run_command(line, Talk(Server("http://x"), "a"), lambda: ["a", "b"])


async def test_a_place_by_its_url(gateway: FakeGateway, session: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        for url in (gateway.url, f"{gateway.url}/v1", f"{gateway.url}/v1/"):
            place = await find(ServerRequest(None, url), session, stack, silent)
            assert place.server.url == gateway.url
            assert place.model == "org/m"
        with pytest.raises(AskError, match="has no model 'x'; choose one of: org/m"):
            await find(ServerRequest("x", gateway.url), session, stack, silent)
        gateway.names = []
        with pytest.raises(AskError, match="serves no model"):
            await find(ServerRequest(None, gateway.url), session, stack, silent)


async def test_a_place_that_there_is_not(
    session: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with AsyncExitStack() as stack:
        with pytest.raises(AskError, match="no `plimsoll up` is running; name a model"):
            await find(ServerRequest(None, None), session, stack, silent)
        with pytest.raises(
            AskError, match="'http://gateway:8000' is a URL, not a model; use --url http://gateway:8000"
        ):
            await find(ServerRequest("http://gateway:8000", None), session, stack, silent)
        with pytest.raises(AskError, match="no running `plimsoll up` serves 'qwen'"):
            await find(ServerRequest("qwen", None), session, stack, silent)
        with pytest.raises(AskError, match="does not answer"):
            await find(ServerRequest(None, f"http://127.0.0.1:{unused_tcp_port}"), session, stack, silent)
