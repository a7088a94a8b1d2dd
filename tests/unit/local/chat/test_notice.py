"""The notice of `plimsoll chat` about a model before the first question."""

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from plimsoll_runtime.local.chat.conversation import AskError, Server
from plimsoll_runtime.local.chat.terminal import LONGEST, NO_TEMPLATE, notice

CHATS = {"id": "m", "task": "generate", "abilities": ["structured_outputs", "chat"]}
CANNOT = {"id": "m", "task": "generate", "abilities": ["structured_outputs"]}


async def told(respond: Callable[[web.Request], web.Response], model: str = "m") -> str | None:
    async def answer(request: web.Request) -> web.Response:
        return respond(request)

    app = web.Application()
    app.router.add_get("/v1/models/{name:.+}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        return await notice(session, Server(str(server.make_url("")).rstrip("/"), "secret"), model)


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (CHATS, None),
        (CHATS | {"about": "a base model"}, "a base model"),
        (CANNOT, NO_TEMPLATE),
        (CANNOT | {"about": "a base model"}, "a base model"),
        ({"id": "m"}, None),
        ({"id": "m", "task": "embed", "abilities": []}, None),
        ({"id": "m", "about": ["x"], "abilities": "chat"}, None),
        (CHATS | {"about": "a\x1b[2Jb\nc" + "x" * 1000}, "a [2Jb c" + "x" * (LONGEST - 8)),
    ],
)
async def test_a_line_of_a_models_card(card: dict[str, Any], expected: str | None) -> None:
    assert await told(lambda _: web.json_response(card)) == expected


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "[" * 100_000, "null"])
async def test_a_server_of_others_that_has_no_such_card(text: str) -> None:
    assert await told(lambda _: web.Response(text=text)) is None


async def test_an_error_says_nothing_of_the_model() -> None:
    assert await told(lambda _: web.json_response({"about": "x"}, status=404)) is None


async def test_the_model_is_asked_for_by_its_name_with_the_key() -> None:
    def respond(request: web.Request) -> web.Response:
        return web.json_response({"about": f"{request.match_info['name']} {request.headers['authorization']}"})

    assert await told(respond, "org/a b?c#d") == "org/a b?c#d Bearer secret"


async def test_a_server_that_is_gone(unused_tcp_port: int) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(AskError, match="does not answer"):
            await notice(session, Server(f"http://127.0.0.1:{unused_tcp_port}"), "m")
