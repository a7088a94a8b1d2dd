"""Files and batches go to the replicas of the model that keeps them for the key."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from gateway_support.keys import Keys
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from plimsoll_gateway.admission.limits import BATCHES, BODY_BYTES, FILES, Limits
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, build_table
from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.keys.api_key import ApiKey, KeyFileError, KeyLimits, read_key
from plimsoll_gateway.proxy.body import Message
from plimsoll_gateway.proxy.files import FileReplicas, filed_at
from plimsoll_gateway.proxy.upload import Upload
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.server.options import parse_options

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

MAX_FILE = 200_000
RunWorld = Callable[..., AbstractAsyncContextManager["World"]]
ASKED = [
    ("POST", "/v1/files"),
    ("GET", "/v1/files?limit=2&after=x"),
    ("GET", "/v1/files/file-1"),
    ("DELETE", "/v1/files/file-1"),
    ("GET", "/v1/files/file-1/content"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/batch_1"),
    ("POST", "/v1/batches/batch_1/cancel"),
]


async def believing(request: Request) -> None:
    """A runtime that accepts the gateway's credential."""
    request.respond(200, '{"ok": true}', "content-type: application/json", "x-plimsoll-tenant: believed")


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_without_the_setting_it_is_named(world: World, ok: Behaviour, method: str, path: str) -> None:
    upstream = await world.upstream(ok)
    world.show(world.replica(upstream))
    status, told = await world.ask(method, path, data=b"x" if method == "POST" else None)
    assert (status, told["error"]["code"]) == (501, "files_not_shared")
    assert "spec.files.claim" in told["error"]["message"]
    assert "of the ModelDeployment or its RuntimePool" in told["error"]["message"]
    assert "--files-model" in told["error"]["message"]
    assert upstream.requests == []


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_models_say_that_they_keep_them(world: World, ok: Behaviour, method: str, path: str) -> None:
    """Only replicas with the folder are asked."""
    upstream, without, plain = [await world.upstream(ok) for _ in range(3)]
    replicas = (replace(world.replica(upstream), files="ns/shared"), world.replica(without))
    keeping = Model(ObjectKey("ns", "m"), ("m",), 1.0, "", replicas, files="ns/shared")
    others = Model(ObjectKey("ns", "n"), ("n",), 0.0, "", (world.replica(plain),))
    world.store.replace(build_table([keeping, others]))
    for _ in range(4):
        assert (await world.ask(method, path, data=b"x" if method == "POST" else None))[0] == 200
    assert (len(upstream.requests), without.requests, plain.requests) == (4, [], [])


async def test_models_of_one_claim_answer_for_each_other(world: World, ok: Behaviour) -> None:
    upstreams = [await world.upstream(ok) for _ in range(2)]
    models = [
        Model(
            ObjectKey("ns", name),
            (name,),
            1.0,
            "",
            (replace(world.replica(one), files="ns/shared"),),
            files="ns/shared",
        )
        for name, one in zip("ab", upstreams, strict=True)
    ]
    models.append(Model(ObjectKey("ns", "c"), ("c",), 0.0, "", (), files="ns/shared"))
    world.store.replace(build_table(models))
    for _ in range(20):
        assert (await world.ask("GET", "/v1/files"))[0] == 200
    assert all(upstream.requests for upstream in upstreams)


async def test_while_a_changed_claim_rolls_out_those_that_have_the_old_one_are_not_asked(
    world: World, ok: Behaviour
) -> None:
    """Data sent to them would be lost with them."""
    old, new = [await world.upstream(ok) for _ in range(2)]
    replicas = tuple(
        replace(world.replica(upstream), files=claim) for upstream, claim in ((old, "ns/old"), (new, "ns/new"))
    )
    world.store.replace(build_table([Model(ObjectKey("ns", "m"), ("m",), 1.0, "", replicas, files="ns/new")]))
    for _ in range(4):
        assert (await world.ask("GET", "/v1/files"))[0] == 200
    assert (len(old.requests), len(new.requests)) == (0, 4)
    world.store.replace(build_table([Model(ObjectKey("ns", "m"), ("m",), 1.0, "", replicas[:1], files="ns/new")]))
    assert (await world.ask("GET", "/v1/files"))[0] == 503


def keeper(name: str, namespace: str, created: float = 1.0, *, ready: bool | None = True, claim: str = "c") -> Model:
    """Return a model that keeps files on a claim of its namespace. `ready` None: it has no pod."""
    files, key = f"{namespace}/{claim}", ObjectKey(namespace, name)
    pod = Replica(f"{key}", f"http://{name}", ready=bool(ready), files=files)
    return Model(key, (name,), created, "", () if ready is None else (pod,), files=files)


def claim_of(models: Iterable[Model], key: ApiKey | None, filing: FileReplicas | None = None) -> str:
    """Return the claim of the key's files, or the status of the refusal if it is not ready."""
    table = build_table(models)
    filing = filing or FileReplicas(Picker())
    filing.note(table)
    try:
        model, replica = filing.find(table, key)
    except Refusal as refusal:
        return str(refusal.status)
    assert model.files == replica.files
    return replica.files


def key_of(name: str = "k", **terms: Any) -> ApiKey:
    return ApiKey(name, KeyLimits(hashes=("sha256:" + "0" * 64,), **terms))


def test_a_claim_that_nothing_has_mounted_turns_nobodys_files_off() -> None:
    """Users who may edit a model may name a claim in it, even in the oldest one."""
    production = keeper("chat", "prod", 5.0)
    for key in (None, key_of(), key_of(models=("chat",))):
        for ready in (None, False):
            assert claim_of([production, keeper("x", "tenant-b", 1.0, ready=ready)], key) == "prod/c"


def test_a_newer_claim_turns_nobodys_files_off() -> None:
    """It does not get them while the replicas of the other are away, either."""
    filing, key = FileReplicas(Picker()), key_of()
    newer = keeper("x", "tenant-b", 9.0)
    assert claim_of([keeper("chat", "prod", 5.0), newer], key, filing) == "prod/c"
    for ready in (False, None):
        assert claim_of([keeper("chat", "prod", 5.0, ready=ready), newer], key, filing) == "503"
    assert claim_of([keeper("chat", "prod", 5.0), newer], key, filing) == "prod/c"
    assert claim_of([newer], key, filing) == "tenant-b/c", "production no longer keeps files"


def test_the_files_of_a_key_are_on_a_claim_of_what_it_may_use() -> None:
    models = [keeper("a-chat", "team-a", 1.0), keeper("b-chat", "team-b", 2.0)]
    assert claim_of(models, key_of(models=("a-*",))) == "team-a/c"
    assert claim_of(models, key_of(models=("b-*",))) == "team-b/c"
    assert claim_of(models, key_of(models=("c-*",))) == "501"
    sneak = replace(keeper("other", "team-b", 3.0), served_names=("a-chat",))
    assert claim_of([*models[1:], sneak, models[0]], key_of(models=("a-*",))) == "team-a/c", (
        "the name belongs to another model"
    )


def test_a_tenants_own_namespace_comes_first() -> None:
    models = [keeper("a", "team-a", 1.0), keeper("b", "team-b", 2.0)]
    assert claim_of(models, key_of("k")) == "team-a/c"
    assert claim_of(models, key_of("team-b")) == "team-b/c"
    assert claim_of(models, key_of("k", tenant="team-b")) == "team-b/c"
    away = [models[0], keeper("b", "team-b", 2.0, ready=False)]
    assert claim_of(away, key_of("team-b")) == "503", "its files are not in another namespace"


MODELS = st.lists(
    st.builds(
        keeper,
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["prod", "team-a", "team-b"]),
        st.integers(0, 9).map(float),
        ready=st.sampled_from([True, False, None]),
        claim=st.sampled_from(["c", "d"]),
    ),
    max_size=6,
    unique_by=lambda model: model.key,
)


@given(before=MODELS, after=MODELS)
def test_a_claim_that_is_named_is_the_one_whatever_models_say(before: list[Model], after: list[Model]) -> None:
    """By the key's file, or by the gateway for keys without a claim."""
    for filing, key in (
        (FileReplicas(Picker()), key_of("team-b", files="prod/c")),
        (FileReplicas(Picker(), "a"), key_of(files="prod/c")),
        (FileReplicas(Picker(), claim="prod/c"), key_of("team-b")),
        (FileReplicas(Picker(), claim="prod/c"), None),
        (FileReplicas(Picker(), claim="team-a/d"), key_of(files="prod/c")),
    ):
        for models in (before, after):
            there = any(model.files == "prod/c" and model.ready_replicas for model in models)
            assert claim_of(models, key, filing) == ("prod/c" if there else "503")


@given(
    steps=st.lists(st.tuples(MODELS, st.booleans()), min_size=1, max_size=6), terms=st.sampled_from([("a",), ("*",)])
)
def test_no_other_tenant_changes_what_a_keys_files_do(
    steps: list[tuple[list[Model], bool]], terms: tuple[str, ...]
) -> None:
    """Other models come and go, and the pods of its own do: the key's files are on its claim, or unavailable. For a
    key for all models this holds against newer models.
    """
    filing, key = FileReplicas(Picker()), key_of(models=terms)
    assert claim_of([keeper("a", "own", -1.0)], key, filing) == "own/c"
    for others, ready in steps:
        own = keeper("a", "own", -1.0, ready=ready)
        assert claim_of([*others, own], key, filing) == ("own/c" if ready else "503")


async def test_each_keys_files_go_to_its_own_claim(run_world: RunWorld, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.add("team-a", models=["a"])
    keys.add("team-b", models=["b"])
    keys.add("bound", files="team-b/c")
    async with run_world(**keys.options()) as world:
        upstreams = {name: await world.upstream(believing) for name in "ab"}
        models = [keeper(name, f"team-{name}") for name in upstreams]
        world.store.replace(
            build_table(
                replace(model, replicas=(replace(model.replicas[0], url=f"http://127.0.0.1:{one.port}"),))
                for model, one in zip(models, upstreams.values(), strict=True)
            )
        )
        for name, method, path in ((name, *asked) for name in ("team-a", "team-b", "bound") for asked in ASKED):
            body = {"data": b"{}"} if method == "POST" else {}
            assert (await world.ask(method, path, headers=keys.header(name), **body))[0] == 200
        tenants = {name: {r.headers["x-plimsoll-tenant"] for r in one.requests} for name, one in upstreams.items()}
        assert tenants == {"a": {"team-a"}, "b": {"team-b", "bound"}}


async def test_a_claim_of_the_gateway_that_no_replica_has_is_told(run_world: RunWorld, ok: Behaviour) -> None:
    async with run_world(files_claim="prod/typo") as world:
        world.show(replace(world.replica(await world.upstream(ok)), files="prod/c"), files="prod/c")
        status, told = await world.ask("GET", "/v1/files")
        assert (status, told["error"]["code"]) == (503, "model_not_ready")
        assert "prod/typo" in told["error"]["message"]


@pytest.mark.parametrize("claim", ["c", "ns/", "/c", "ns/C", "n.s/c", "ns/c/d", "", "ns/c\n"])
def test_what_names_no_claim_is_refused(claim: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyFileError):
        read_key("k.json", json.dumps({"hashes": ["sha256:" + "0" * 64], "files": claim}).encode())
    with pytest.raises(SystemExit):
        parse_options(["--table", "t", "--files-claim", claim])
    assert "NAMESPACE/NAME" in capsys.readouterr().err


def test_files_are_in_one_place() -> None:
    assert parse_options(["--table", "t", "--files-claim", "ns/c"]).files_claim == "ns/c"
    with pytest.raises(SystemExit):
        parse_options(["--table", "t", "--files-claim", "ns/c", "--files-model", "m"])


async def test_who_is_to_keep_them_and_is_not_ready_is_waited_for(world: World) -> None:
    """This is not a matter of settings: a client may retry."""
    world.show(name="m", files="ns/shared", message="the model is loading")
    status, told = await world.ask("GET", "/v1/files")
    assert (status, told["error"]["code"]) == (503, "model_not_ready")
    assert "the model is loading" in told["error"]["message"]


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_they_go_as_they_come(run_world: RunWorld, ok: Behaviour, method: str, path: str) -> None:
    async with run_world(Limits(), files_model="m") as world:
        upstream = await world.upstream(ok)
        world.show(world.replica(upstream))
        body = b"x" * 9_000_000 if path == "/v1/files" else b""
        assert await world.ask(method, path, data=io.BytesIO(body) if body else None) == (200, {"ok": True})
        [request] = upstream.requests
        assert request.line.startswith(f"{method} {path} ")
        assert request.body == body


async def test_a_file_without_a_length_goes_as_it_comes(run_world: RunWorld, ok: Behaviour) -> None:
    sent = [b"a" * 100_000, b"", b"b" * 300_000, b"c"]

    async def pieces() -> AsyncIterator[bytes]:
        for piece in sent:
            yield piece

    async with run_world(Limits(), files_model="m") as world:
        upstream = await world.upstream(ok)
        world.show(world.replica(upstream))
        assert await world.ask("POST", "/v1/files", data=pieces()) == (200, {"ok": True})
        [request] = upstream.requests
        assert request.body == b"".join(sent)
        assert "content-length" not in request.headers
        assert await world.metric("plimsoll_gateway_body_bytes") == 0


@pytest.mark.parametrize("declared", [True, False])
async def test_a_file_that_is_too_large_is_refused(run_world: RunWorld, ok: Behaviour, declared: bool) -> None:
    """An upload without a length is refused once it exceeds the limit; its replica never gets its end."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MAX_FILE // 1000 + 1):
            yield b"x" * 1000

    async with run_world(Limits({**BODY_BYTES, FILES: MAX_FILE}), files_model="m") as world:
        upstream = await world.upstream(ok)
        world.show(world.replica(upstream))
        body = io.BytesIO(b"x" * (MAX_FILE + 1)) if declared else pieces()
        status, told = await world.ask("POST", "/v1/files", data=body)
        assert (status, told["error"]["code"]) == (413, "body_too_large")
        assert f"({MAX_FILE} bytes, --max-body-bytes)" in told["error"]["message"]
        assert upstream.requests == []


async def test_a_request_for_a_batch_is_small(run_world: RunWorld, ok: Behaviour) -> None:
    async with run_world(Limits(), files_model="m") as world:
        world.show(world.replica(await world.upstream(ok)))
        for path, named in (("/v1/batches", True), ("/v1/batches/batch_1/cancel", False)):
            status, told = await world.ask("POST", path, data=b" " * (BODY_BYTES[BATCHES] + 1))
            assert status == 413
            assert ("--max-body-bytes" in told["error"]["message"]) is named


async def test_a_replica_that_refuses_a_file_early_is_heard(run_world: RunWorld) -> None:
    """It answers after the headers, and reads nothing more."""

    async def full(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = b'{"error": {"message": "full", "code": "files_full"}}'
        head = b"HTTP/1.1 413 Full\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
        writer.write(head + text)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(full, "127.0.0.1", 0)
    async with run_world(Limits(), files_model="m") as world:
        world.show(world.replica(server.sockets[0].getsockname()[1]))
        status, told = await world.ask("POST", "/v1/files", data=io.BytesIO(b"x" * 3_000_000))
        assert (status, told["error"]["code"]) == (413, "files_full")
    server.close()


async def test_no_more_of_a_file_is_asked_for_than_its_replica_takes() -> None:
    """Except for socket buffers, unread data stays with the client."""
    asked, count, size = 0, 2000, 64 << 10
    reads, closed = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"x" * size, "more_body": asked < count}

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reads.wait()
        for _ in range(count):
            await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    upload = Upload(receive, {b"content-length": b"%d" % (count * size)}, count * size)
    async with server, Pool() as pool:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        fields = [(b"content-length", b"%d" % (count * size))]
        sending = asyncio.create_task(pool.ask(url, "POST", "/", fields, upload.pieces()))
        before = -1
        while before < asked or asked == 0:
            before = asked
            await asyncio.sleep(0.2)
        assert asked * size < (count * size) // 4
        reads.set()
        assert (await sending).status == 200
        assert asked == count
        await closed.wait()


async def test_a_client_that_leaves_ends_its_file(run_world: RunWorld) -> None:
    """The replica detects that the upload is incomplete."""
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(5)
        arrived.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(replica, "127.0.0.1", 0)
    async with run_world(Limits(), files_model="m") as world:
        world.show(world.replica(server.sockets[0].getsockname()[1]))
        _, writer = await asyncio.open_connection("127.0.0.1", int(world.url.rpartition(":")[2]))
        writer.write(b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nbegin")
        await asyncio.wait_for(arrived.wait(), 30)
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 30)
    server.close()


@pytest.mark.parametrize(
    "name", ["%C3%BC", "a%20b", "a%3Fb=c", "a%20HTTP/1.1%0D%0Ax-plimsoll-tenant:%20another%0D%0A", "%0D%0A%0D%0AGET"]
)
async def test_what_a_path_hides_is_sent_as_it_came(run_world: RunWorld, ok: Behaviour, name: str) -> None:
    name = name.replace("/", "")
    async with run_world(Limits(), files_model="m") as world:
        upstream = await world.upstream(ok)
        world.show(world.replica(upstream))
        async with world.client.get(URL(f"{world.url}/v1/files/{name}", encoded=True)) as response:
            assert response.status == 200
        [request] = upstream.requests
        assert unquote(request.line.split()[1]) == f"/v1/files/{unquote(name)}"
        assert len(request.line.split()) == 3
        assert "x-plimsoll-tenant" not in request.headers


async def test_a_model_that_is_not_there_is_told(run_world: RunWorld, ok: Behaviour) -> None:
    async with run_world(files_model="other") as world:
        world.show(world.replica(await world.upstream(ok)))
        status, told = await world.ask("GET", "/v1/files")
        assert (status, told["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("terms", "allowed"),
    [
        ({}, True),
        ({"models": ["m"]}, True),
        ({"tokensPerMinute": 5}, False),
        ({"tokensPerMinute": 5, "batchShare": 19}, False),
        ({"tokensPerMinute": 5, "batchShare": 20}, True),
        ({"weight": 2}, True),
    ],
)
async def test_a_bounded_key_makes_batches_of_what_is_set_aside(
    run_world: RunWorld, tmp_path: Path, terms: dict[str, Any], allowed: bool
) -> None:
    keys = Keys(tmp_path)
    keys.add("team", **terms)
    async with run_world(**keys.options(), files_model="m") as world:
        upstream = await world.upstream(believing)
        world.show(world.replica(upstream))
        headers = keys.header("team")
        assert (await world.ask("GET", "/v1/batches"))[0] == 401
        assert (await world.ask("GET", "/v1/batches", headers=headers))[0] == 200
        posed = headers | {"x-plimsoll-batch": "mine"}
        status, told = await world.ask("POST", "/v1/batches", headers=posed, data=b"{}")
        if allowed:
            assert status == 200
            assert upstream.requests[-1].headers["x-plimsoll-tenant"] == "team"
            assert json.loads(upstream.requests[-1].headers["x-plimsoll-batch"])["key"] == "team"
            assert "x-plimsoll-batch" not in upstream.requests[0].headers
        else:
            assert (status, told["error"]["code"]) == (403, "batch_not_allowed")
            assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", ["/v1/file", "/v1/files/", "/v1/files/a/b", "/v1/batches/a/b/c", "/v1/filesx"])
def test_other_paths_are_others(path: str) -> None:
    assert filed_at(path) is None
