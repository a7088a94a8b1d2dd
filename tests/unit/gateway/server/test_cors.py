"""Web pages of allowed origins can use the API from a browser, others cannot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gateway_support.keys import Keys
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.server.cors import ORIGIN, Cors
from plimsoll_gateway.server.options import parse_options

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

RunWorld = Callable[..., AbstractAsyncContextManager["World"]]
CHAT, OTHER = "https://chat.example.com", "https://evil.example.com"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
ALLOW = "access-control-allow-origin"


@pytest.mark.parametrize("origins", [(CHAT,), ("http://localhost:3000", CHAT), ("*",)])
async def test_a_preflight_needs_no_key(run_world: RunWorld, tmp_path: Path, origins: tuple[str, ...]) -> None:
    keys = Keys(tmp_path)
    keys.add("team")
    async with run_world(origins=origins, **keys.options()) as world:
        for path in ("/v1/chat/completions", "/v1//models/", "/v1/files/file-1"):
            async with world.client.options(world.url + path, headers={"origin": CHAT, **PREFLIGHT}) as response:
                told = response.headers
                assert (response.status, await response.read()) == (204, b"")
                assert told[ALLOW] == ("*" if origins == ("*",) else CHAT)
                assert told["access-control-allow-headers"] == "authorization,content-type"
                assert told["access-control-allow-methods"] == "GET, HEAD, POST, DELETE"
                assert "content-length" not in told
                assert "x-request-id" in told
        async with world.client.options(f"{world.url}/v1/models", headers={"origin": CHAT}) as response:
            assert response.status == 405, "without Access-Control-Request-Method it is not a preflight"


async def test_a_page_of_another_origin_is_refused(run_world: RunWorld, ok: Behaviour) -> None:
    async with run_world(origins=(CHAT,)) as world:
        upstream = await world.model(ok)
        headers = {"origin": OTHER, **PREFLIGHT}
        async with world.client.options(f"{world.url}/v1/chat/completions", headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (403, "origin_not_allowed")
            assert ALLOW not in response.headers
        async with world.post(headers={"origin": OTHER}) as response:
            assert response.status == 200, "the browser hides the response from the page"
            assert ALLOW not in response.headers
            assert response.headers["vary"] == "origin"
        assert len(upstream.requests) == 1


async def test_every_answer_says_that_the_page_may_read_it(run_world: RunWorld, tmp_path: Path) -> None:
    """Including errors and streams, whatever a replica sends for its own pages."""

    async def stream(request: Request) -> None:
        request.begin("content-type: text/event-stream", f"{ALLOW}: *", "x-plimsoll-tenant: believed")
        request.chunk("data: [DONE]\n\n")
        request.end()

    keys = Keys(tmp_path)
    keys.add("team", requestsPerMinute=1)
    async with run_world(origins=(CHAT,), **keys.options()) as world:
        await world.model(stream)
        page = {"origin": CHAT}
        asked = [
            (401, world.post(headers=page)),
            (200, world.post({"model": "m", "stream": True}, headers=page | keys.header("team"))),
            (429, world.post(headers=page | keys.header("team"))),
            (404, world.post(path="/v1/nowhere", headers=page)),
            (200, world.client.get(f"{world.url}/v1/models", headers=page | keys.header("team"))),
        ]
        for status, answer in asked:
            async with answer as response:
                assert response.status == status
                assert response.headers.getall(ALLOW) == [CHAT]
                assert "x-ratelimit-remaining-tokens" in response.headers["access-control-expose-headers"]
                if status == 429:
                    assert response.headers["x-ratelimit-limit-requests"] == "1"


async def test_without_the_option_no_page_is_spoken_of(world: World) -> None:
    async def replica(request: Request) -> None:
        request.respond(200, "{}", f"{ALLOW}: *", "access-control-allow-credentials: true")

    await world.model(replica)
    async with world.post(headers={"origin": CHAT}) as response:
        assert response.status == 200
        assert not [name for name in response.headers if name.lower().startswith("access-control")]
    async with world.client.options(f"{world.url}/v1/models", headers={"origin": CHAT, **PREFLIGHT}) as response:
        assert response.status == 405


ORIGINS = st.from_regex(ORIGIN, fullmatch=True)


@given(allowed=st.lists(ORIGINS, min_size=1, max_size=4), asking=ORIGINS)
def test_no_origin_is_told_yes_that_is_not_allowed(allowed: list[str], asking: str) -> None:
    cors = Cors(allowed)
    granted = dict(cors.fields(asking.encode())).get(ALLOW.encode())
    if "*" in allowed:
        assert granted == b"*"
    elif asking in allowed:
        assert granted == asking.encode()
        cors.preflight({b"origin": asking.encode()})
    else:
        assert granted is None
        with pytest.raises(Refusal):
            cors.preflight({b"origin": asking.encode()})


@pytest.mark.parametrize(
    "text", ["chat.example.com", f"{CHAT}/", "https://Chat.example.com", "null", "", "https://a, *"]
)
def test_what_no_browser_sends_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_options(["--table", "t", "--cors-origin", text])
    assert end.value.code == 2
    assert "SCHEME://HOST[:PORT]" in capsys.readouterr().err


def test_origins_are_those_of_the_command_line() -> None:
    assert parse_options(["--table", "t"]).origins == ()
    given = ["--cors-origin", CHAT, "--cors-origin", "http://localhost:3000"]
    assert parse_options(["--table", "t", *given]).origins == (CHAT, "http://localhost:3000")
