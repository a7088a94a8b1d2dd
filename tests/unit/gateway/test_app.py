from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING

import pytest

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, build_table

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, World


async def test_models_are_listed_with_their_state(world: World) -> None:
    ready = Replica("1", "http://x", True)
    world.store.replace(
        build_table(
            [
                Model(ObjectKey("a", "one"), ("one", "org/one"), 1767225600.0, "", (ready,)),
                Model(ObjectKey("b", "two"), ("two", "one"), 1767225601.0, "loading", ()),
            ]
        )
    )
    async with world.get("/v1/models") as response:
        listed = await response.json()
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == ["one", "org/one", "two"]
    assert listed["data"][0] == {
        "id": "one",
        "object": "model",
        "created": 1767225600,
        "owned_by": "a",
        "ready": True,
        "ready_replicas": 1,
        "message": "",
        "max_model_len": None,
    }
    for path in ("/v1/models/org/one", "/v1/models/org%2Fone"):
        async with world.get(path) as response:
            assert (await response.json())["id"] == "org/one"
    async with world.get("/v1/models/two") as response:
        assert (await response.json())["ready"] is False
    async with world.get("/v1/models/three") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


async def test_an_unknown_model_is_a_404_with_the_known_ones(world: World, ok: Behaviour) -> None:
    upstream = await world.model(ok)
    async with world.post({"model": "gpt-9"}) as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error == {
        "message": "The model 'gpt-9' does not exist. Known models: m.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    assert upstream.requests == []


async def test_a_model_without_ready_replica_is_a_503_with_its_message(world: World) -> None:
    world.show(world.replica(1, ready=False), message="loading: weights 40%")
    async with world.post() as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) > 0
        assert "loading: weights 40%" in (await response.json())["error"]["message"]
    world.show(world.replica(1, ready=False), world.replica(2, ready=False))
    async with world.post() as response:
        assert "0 of 2 replicas" in (await response.json())["error"]["message"]


async def test_before_the_first_table_nothing_is_said_to_be_unknown(world: World) -> None:
    for path in ("/v1/models", "/v1/models/m"):
        async with world.get(path) as response:
            assert response.status == 503
    async with world.post() as response:
        assert response.status == 503
        assert "retry-after" in response.headers
    async with world.get("/health") as response:
        assert response.status == 503
    async with world.get("/live") as response:
        assert response.status == 200


async def test_health_fails_while_draining_and_requests_still_pass(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    async with world.get("/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    world.gateway.drain()
    async with world.get("/health") as response:
        assert (response.status, await response.json()) == (503, {"status": "draining"})
    async with world.post() as response:
        assert response.status == 200


@pytest.mark.parametrize(
    "path", ["/v1", "/v2/models", "/v1/chat/completions%2f", "/v1/nowhere", "/v1/models/..%2f..%2fx"]
)
async def test_unknown_paths(world: World, ok: Behaviour, path: str) -> None:
    await world.model(ok)
    async with world.get(path) as response:
        assert response.status == 404
        assert "error" in await response.json()


async def test_wrong_methods(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    async with world.get("/v1/chat/completions") as response:
        assert response.status == 405
        assert response.headers["allow"] == "POST"
    async with world.post(path="/v1/models") as response:
        assert response.status == 405
        assert response.headers["allow"] == "GET, HEAD"
    async with world.client.head(f"{world.url}/health") as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"m"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"{}", "'model' is required"),
        (b'{"model": null}', "must be a string"),
        (b'{"model": 1}', "must be a string"),
        (b'{"model": ""}', "must be a string"),
        (b'{"model": ["m"]}', "must be a string"),
        (b'{"model": "m", "model": "n"}', "appears twice"),
        (b'{"model": "m", "x": 1, "x": 1}', "appears twice"),
        (b'{"model": "m", "x": NaN}', "not valid JSON"),
        (b'{"model": "m", "x": [1 2]}', "not valid JSON"),
        (b'{"model": "m", "x": 01}', "not valid JSON"),
        (b'{"model": "m"} {}', "not valid JSON: trailing characters"),
        (b'{"model": "m", "model": "m"}', 'The key "model" appears twice'),
        (b'{"model": "m", "mod\\u0065l": "m"}', 'The key "model" appears twice'),
        (b"{" + b",".join(b'"%d": 0' % i for i in range(1000)) + b"}", "more than 256 keys"),
        (b'{"model": "' + b"m" * 5000 + b'"}', "longer than 4096 bytes"),
        (b'{"model": "m", "x": "' + b"y" * 65_530 + b'\xff"}', "not UTF-8"),
        (('{"model": "m", "x": "' + "y" * 65_514 + "é").encode()[:-1], "not UTF-8"),
        (b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"model": "m", "x": ' + b'{"x":' * 100_000 + b"0" + b"}" * 100_000 + b"}", "nested too deeply"),
        (b'{"model": "\xff"}', "not UTF-8"),
        ('{"model": "m"}'.encode("utf-16"), "not UTF-8"),
        (b"\xef\xbb\xbf" + b'{"model": "m"}', "not valid JSON"),
    ],
)
async def test_bodies_that_are_refused(world: World, ok: Behaviour, body: bytes, what: str) -> None:
    upstream = await world.model(ok)
    async with world.client.post(f"{world.url}/v1/chat/completions", data=body) as response:
        assert response.status == 400
        error = json.loads(await response.read())["error"]
    assert what in error["message"]
    assert error["type"] == "invalid_request_error"
    assert upstream.requests == []


async def test_nested_objects_may_repeat_what_they_like(world: World, ok: Behaviour) -> None:
    upstream = await world.model(ok)
    body = b'{"x": {"model": 1, "model": 2}, "model": "m"}'
    async with world.client.post(f"{world.url}/v1/chat/completions", data=body) as response:
        assert response.status == 200
    assert upstream.requests[0].body == body


async def test_a_body_over_the_limit_is_a_413(world: World, ok: Behaviour) -> None:
    upstream = await world.model(ok)
    big = json.dumps({"model": "m", "x": "y" * (2 << 20)}).encode()

    async def pieces() -> object:
        for at in range(0, len(big), 1 << 16):
            yield big[at : at + (1 << 16)]

    for data in (io.BytesIO(big), pieces()):
        async with world.client.post(f"{world.url}/v1/completions", data=data) as response:
            assert response.status == 413
            assert "1048576 bytes" in (await response.json())["error"]["message"]
    async with world.client.post(f"{world.url}/v1/completions", data=io.BytesIO(big), expect100=True) as response:
        assert response.status == 413
    assert upstream.requests == []


async def test_a_body_at_the_limit_passes(world: World, ok: Behaviour) -> None:
    upstream = await world.model(ok)
    frame = len(json.dumps({"model": "m", "x": ""}))
    body = json.dumps({"model": "m", "x": "y" * ((1 << 20) - frame)}).encode()
    assert len(body) == 1 << 20
    async with world.client.post(f"{world.url}/v1/completions", data=body) as response:
        assert response.status == 200
    assert upstream.requests[0].body == body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["a"]}),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v2/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/classify", {"input": "a"}),
    ],
)
async def test_what_generates_nothing_passes(world: World, ok: Behaviour, path: str, body: dict[str, object]) -> None:
    upstream = await world.model(ok)
    async with world.post({"model": "m", **body}, path) as response:
        assert (response.status, await response.json()) == (200, {"ok": True})
    assert upstream.requests[0].line == f"POST {path} HTTP/1.1"
    assert json.loads(upstream.requests[0].body) == {"model": "m", **body}


async def test_nobody_has_no_limits_and_no_headers(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    async with world.post({"model": "m", "max_tokens": 10**9}) as response:
        assert response.status == 200
        assert not [name for name in response.headers if name.lower().startswith("x-ratelimit")]


async def test_compressed_requests_are_refused(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    async with world.post(headers={"content-encoding": "gzip"}) as response:
        assert response.status == 415


async def test_unknown_models_share_one_series(world: World, ok: Behaviour) -> None:
    await world.model(ok)
    for index in range(20):
        async with world.post({"model": f"made-up-{index}"}) as response:
            assert response.status == 404
    async with world.post() as response:
        await response.read()
    async with world.get("/metrics") as response:
        text = await response.text()
    assert "made-up" not in text
    assert await world.metric('plimsoll_gateway_requests_total{code="404",model="",namespace=""}') == 20
    assert await world.metric('plimsoll_gateway_requests_total{code="200",model="m",namespace="ns"}') == 1
    assert await world.metric('plimsoll_gateway_upstream_seconds_count{model="m",namespace="ns"}') == 1
    assert await world.metric('plimsoll_gateway_ready_replicas{model="m",namespace="ns"}') == 1


async def test_a_fault_of_ours_is_a_500_in_openais_shape(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("plimsoll_gateway.proxy.exchange.read_body", fail)
    async with world.post() as response:
        assert response.status == 500
        assert (await response.json())["error"]["code"] == "internal_error"


@pytest.mark.parametrize("request_line", ["POST /v1/completions", "GET /v1/models"])
async def test_two_lengths_are_refused_and_the_connection_closed(
    world: World, ok: Behaviour, request_line: str
) -> None:
    """A proxy in front may use the other length: the rest of its body would be read as a request."""
    upstream = await world.model(ok)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
    head = f"{request_line} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(f"{head}0\r\n\r\nGET /live HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower()
    assert upstream.requests == []
