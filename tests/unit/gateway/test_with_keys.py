"""A gateway with keys: authentication, allowed models, limits, order of requests; and the headers to the runtime."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_support.keys import CREDENTIAL, Keys

from plimsoll_gateway.admission.limits import Limits
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, build_table
from plimsoll_gateway.keys.credential import Credential, CredentialError
from plimsoll_gateway.keys.key_folder import KeyFolder
from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.keys.secret import digest_of, new_key

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, Request, World

LONG = [{"role": "system", "content": "rules " * 300}]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(tmp_path)
    made.add("a")
    return made


@pytest.fixture
def credential(keys: Keys) -> Credential:
    keys.token.write_text(f"{CREDENTIAL}\nthe-one-before-this-one\n")
    return Credential(keys.token)


@pytest.fixture
async def keyed(
    run_world: Callable[..., AbstractAsyncContextManager[World]], keys: Keys, credential: Credential
) -> AsyncIterator[World]:
    """A gateway with the keys that the folder has when the test starts."""
    folder = KeyFolder(keys.folder)
    async with run_world(keyring=Keyring(folder), credential=credential) as world:
        world.refresh = folder.refresh  # type: ignore[attr-defined]
        yield world


async def ask(world: Any, headers: dict[str, str], model: str = "m", **fields: object) -> tuple[int, dict[str, Any]]:
    world.refresh()
    async with world.post({"model": model, **fields}, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer password"},
        {"authorization": f"Bearer {new_key()}"},
        {"authorization": "Bearer ключ".encode().decode("latin-1")},
        {"x-api-key": "anything"},
        {"x-api-key": ""},
        {"x-plimsoll-tenant": "a", "x-plimsoll-gateway": CREDENTIAL},
    ],
)
async def test_whoever_has_no_valid_key_is_a_401(keyed: World, ok: Behaviour, headers: dict[str, str]) -> None:
    upstream = await keyed.model(ok)
    raw = {name.encode().decode(): value.encode("latin-1").decode("latin-1") for name, value in headers.items()}
    status, answer = await ask(keyed, raw)
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    for path in ("/v1/models", "/v1/models/m"):
        async with keyed.client.get(keyed.url + path, headers=raw) as response:
            assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
    assert upstream.requests == []


async def test_nothing_of_a_body_is_read_before_the_key_is_known(
    keyed: World, ok: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keyed.model(ok)
    monkeypatch.setattr("plimsoll_gateway.proxy.exchange.read_body", None)
    monkeypatch.setattr("plimsoll_gateway.app.read_fields", None)
    async with keyed.client.post(f"{keyed.url}/v1/completions", data=io.BytesIO(b"{" * 2_000_000)) as response:
        assert response.status == 401


async def test_a_key_may_come_as_anthropics_clients_send_it(keyed: World, keys: Keys, ok: Behaviour) -> None:
    upstream = await keyed.model(ok)
    body = {"model": "m", "messages": [], "max_tokens": 1}
    async with keyed.post(body, "/v1/messages", headers={"x-api-key": keys.texts["a"]}) as response:
        assert response.status == 200
    assert "x-api-key" not in upstream.requests[0].headers
    async with keyed.post(body, "/v1/messages", headers={"x-api-key": "wrong"}) as response:
        told = await response.json()
        assert (response.status, told["type"], told["error"]["type"]) == (401, "error", "authentication_error")
        assert told["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize("path", ["/health", "/live", "/metrics"])
async def test_probes_need_no_key(keyed: World, ok: Behaviour, path: str) -> None:
    await keyed.model(ok)
    async with keyed.get(path) as response:
        assert response.status == 200


async def test_the_runtime_is_told_the_tenant_and_never_the_key(keyed: World, keys: Keys, ok: Behaviour) -> None:
    upstream = await keyed.model(ok)
    keys.add("b", tenant="shared")
    forged = {"x-plimsoll-tenant": "b", "x-plimsoll-gateway": "forged", "x-plimsoll-load": "x"}
    for name in ("a", "b"):
        assert (await ask(keyed, keys.header(name) | forged))[0] == 200
    told = [request.headers for request in upstream.requests]
    assert [headers["x-plimsoll-tenant"] for headers in told] == ["a", "shared"]
    assert {headers["x-plimsoll-gateway"] for headers in told} == {CREDENTIAL}
    assert all("authorization" not in headers and "x-plimsoll-load" not in headers for headers in told)


async def test_without_keys_a_clients_word_on_its_tenant_goes_nowhere(world: World, ok: Behaviour) -> None:
    upstream = await world.model(ok)
    headers = {"x-plimsoll-tenant": "b", "x-plimsoll-gateway": CREDENTIAL, "authorization": "Bearer theirs"}
    async with world.post(headers=headers) as response:
        assert response.status == 200
    assert not {"x-plimsoll-tenant", "x-plimsoll-gateway"} & set(upstream.requests[0].headers)
    assert upstream.requests[0].headers["authorization"] == "Bearer theirs"


async def test_a_key_sees_and_asks_only_what_it_is_for(keyed: World, keys: Keys, ok: Behaviour) -> None:
    replica = keyed.replica(await keyed.upstream(ok))
    names = ("qwen-a", "qwen-b", "secret")
    keyed.store.replace(build_table([Model(ObjectKey("ns", n), (n,), 1.0, "", (replica,)) for n in names]))
    keys.add("q", models=["qwen-*"])
    keyed.refresh()  # type: ignore[attr-defined]
    headers = keys.header("q")
    async with keyed.client.get(f"{keyed.url}/v1/models", headers=headers) as response:
        assert [entry["id"] for entry in (await response.json())["data"]] == ["qwen-a", "qwen-b"]
    for name, status in (("qwen-a", 200), ("secret", 403), ("no-such", 403), ("qwen-c", 404)):
        async with keyed.client.get(f"{keyed.url}/v1/models/{name}", headers=headers) as response:
            assert response.status == status
        told, answer = await ask(keyed, headers, name)
        assert told == status
        if status != 200:
            listed = answer["error"]["message"].replace(f"'{name}'", "")
            assert ("secret" in listed, answer["error"]["param"]) == (False, "model")


async def test_a_model_that_is_deleted_while_a_key_waits_tells_it_of_no_other(keyed: World, keys: Keys) -> None:
    def show(*names: str) -> None:
        models = [Model(ObjectKey("ns", n), (n,), 1.0, "", (), scales_to=1) for n in names]
        keyed.store.replace(build_table(models))

    show("qwen-a", "qwen-b", "secret")
    keys.add("q", models=["qwen-*"])
    asked = asyncio.create_task(ask(keyed, keys.header("q"), "qwen-a"))
    while not keyed.gateway._queues.waiting(ObjectKey("ns", "qwen-a")):
        await asyncio.sleep(0)
    show("qwen-b", "secret")
    status, answer = await asked
    message = answer["error"]["message"]
    assert (status, "qwen-b" in message, "secret" in message) == (404, True, False)


async def test_a_limit_of_requests_is_told_in_openais_headers(keyed: World, keys: Keys, ok: Behaviour) -> None:
    upstream = await keyed.model(ok)
    keys.add("two", requestsPerMinute=2, tokensPerMinute=1000)
    keyed.refresh()  # type: ignore[attr-defined]
    left = []
    for _ in range(3):
        async with keyed.post({"model": "m", "max_tokens": 10, "prompt": "x" * 400}, headers=keys.header("two")) as got:
            left.append((got.status, got.headers["x-ratelimit-remaining-requests"]))
            headers, answer = got.headers, await got.json()
    assert left == [(200, "1"), (200, "0"), (429, "0")]
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-limit-tokens"] == "1000"
    assert 1 <= int(headers["retry-after"]) <= 61
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert (answer["error"]["code"], answer["error"]["type"]) == ("rate_limit_exceeded", "requests")
    assert len(upstream.requests) == 2
    assert (await ask(keyed, keys.header("a")))[0] == 200, "another key has separate limits"
    assert await keyed.metric('plimsoll_gateway_key_requests_total{code="429",key="two"}') == 1


async def test_tokens_are_reserved_and_corrected_by_what_the_answer_tells(keyed: World, keys: Keys) -> None:
    async def tells(request: Request) -> None:
        request.respond(200, '{"usage": {"total_tokens": 150}}', "content-type: application/json")

    async def fails(request: Request) -> None:
        request.respond(400, "{}", "content-type: application/json")

    await keyed.model(tells, fails, tells)
    keys.add("t", tokensPerMinute=1000)
    header = keys.header("t")
    assert (await ask(keyed, header, max_tokens=900))[0] == 200  # 150
    assert (await ask(keyed, header, max_tokens=800))[0] == 400  # nothing
    assert (await ask(keyed, header, max_tokens=800))[0] == 200  # 300
    status, answer = await ask(keyed, header, max_tokens=750)
    assert (status, answer["error"]["type"]) == (429, "tokens")
    status, answer = await ask(keyed, header, max_tokens=1001)
    assert (status, "too large" in answer["error"]["message"]) == (429, True)
    assert (await ask(keyed, header, max_tokens=1, prompt="x" * 3600))[0] == 429, "the prompt counts too"
    assert (await ask(keyed, header, max_tokens=300, n=3))[0] == 429, "each response reports this many"
    assert await keyed.metric('plimsoll_gateway_key_tokens_total{key="t"}') == 300


async def test_what_generates_nothing_is_reserved_by_its_texts_alone(keyed: Any, keys: Keys, ok: Behaviour) -> None:
    await keyed.model(ok)
    keys.add("e", tokensPerMinute=100)
    keyed.refresh()
    for path, texts in (("/v1/embeddings", "input"), ("/v1/rerank", "documents"), ("/v1/score", "text_2")):
        for size, status in ((40, 200), (4000, 429)):
            body = {"model": "m", texts: ["x" * size]}
            async with keyed.post(body, path, headers=keys.header("e")) as response:
                assert response.status == status, path


async def test_requests_under_way_are_counted_until_they_end_or_their_clients_go(keyed: World, keys: Keys) -> None:
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    await keyed.model(arrived.put)
    keys.add("s", streams=1)
    first = asyncio.create_task(ask(keyed, keys.header("s")))
    (await arrived.get()).respond(200, "{}", "content-type: application/json")
    assert (await first)[0] == 200
    second = asyncio.create_task(ask(keyed, keys.header("s")))
    held = await arrived.get()
    status, answer = await ask(keyed, keys.header("s"))
    assert (status, "limit of 1 concurrent requests" in answer["error"]["message"]) == (429, True)
    second.cancel()
    async with asyncio.timeout(60):
        await held.hung_up.wait()
    third = asyncio.create_task(ask(keyed, keys.header("s")))
    async with asyncio.timeout(60):
        (await arrived.get()).respond(200, "{}", "content-type: application/json")
    assert (await third)[0] == 200


async def test_a_request_that_no_replica_was_sent_counts_for_nothing(
    keyed: World, keys: Keys, ok: Behaviour, resets: Behaviour, refused_port: int
) -> None:
    keys.add("two", requestsPerMinute=2)
    header = keys.header("two")
    keyed.show()
    assert [(await ask(keyed, header))[0] for _ in range(3)] == [503] * 3
    keyed.show(keyed.replica(refused_port))
    assert [(await ask(keyed, header))[0] for _ in range(3)] == [502] * 3
    await keyed.model(resets, resets, ok)
    assert [(await ask(keyed, header))[0] for _ in range(3)] == [502, 200, 429], "a sent request counts once"


async def test_a_client_that_goes_before_its_answer_begins_has_used_its_prompt(
    keyed: World, keys: Keys, resets: Behaviour
) -> None:
    arrived: asyncio.Queue[Request] = asyncio.Queue()

    async def garbage(request: Request) -> None:
        request.send("HTTP/9.9 hello\r\n\r\n")

    await keyed.model(resets, resets, garbage, arrived.put)
    tokens = 'plimsoll_gateway_key_tokens_total{key="a"}'
    for _ in range(2):
        assert (await ask(keyed, keys.header("a"), prompt="x" * 4000))[0] == 502
    assert await keyed.metric(tokens) == 0, "a replica's failure does not count for the client"
    asked = asyncio.create_task(ask(keyed, keys.header("a"), prompt="x" * 4000))
    held = await arrived.get()
    asked.cancel()
    async with asyncio.timeout(60):
        await held.hung_up.wait()
    while not await keyed.metric(tokens):
        await asyncio.sleep(0)
    assert 1000 <= await keyed.metric(tokens) < 1100


async def served(
    run_world: Callable[..., AbstractAsyncContextManager[World]],
    keys: Keys,
    credential: Credential,
    asked: str,
    used: dict[str, int],
    names: tuple[str, ...] = ("m",),
) -> str:
    """Return the order in which a model with two slots serves these requests, one letter (key) each.

    `used`: tokens that the responses to each key report. `names`: the model's names, used in turn.
    """
    arrived: asyncio.Queue[Request] = asyncio.Queue()
    in_flight = 'plimsoll_gateway_requests_in_flight{model="m",namespace="ns"}'

    def respond(request: Request) -> str:
        name = request.headers["x-plimsoll-tenant"]
        load = "x-plimsoll-load: running=1, waiting=0, slots=1, kv=0.00"
        body = json.dumps({"usage": {"total_tokens": used[name]}})
        request.respond(200, body, "content-type: application/json", load)
        return name

    keys.add("b")
    keyring = Keyring(KeyFolder(keys.folder))
    async with run_world(limits=Limits(waiting=100), keyring=keyring, credential=credential) as world:
        replica = world.replica(await world.upstream(arrived.put))
        world.store.replace(build_table([Model(ObjectKey("ns", "m"), names, 1000.0, "", (replica,))]))
        by = cycle(names)

        async def ask_as(name: str) -> int:
            async with world.post({"model": next(by)}, headers=keys.header(name)) as response:
                await response.read()
                return response.status

        known = asyncio.create_task(ask_as("b"))  # the gateway then knows the number of slots
        respond(await arrived.get())
        assert await known == 200
        tasks: list[asyncio.Task[int]] = []
        for count, name in enumerate(asked, 1):
            tasks.append(asyncio.create_task(ask_as(name)))
            while await world.metric(in_flight) < count:
                await asyncio.sleep(0)
        held = [await arrived.get(), await arrived.get()]
        assert arrived.empty()
        order = ""
        for left in reversed(range(len(asked))):
            order += respond(held.pop(0))
            if left >= 2:
                held.append(await arrived.get())
        assert [await task for task in tasks] == [200] * len(asked)
        return order


@pytest.mark.parametrize("names", [("m",), ("m", "alias")])
async def test_a_full_model_serves_keys_in_turn(
    run_world: Callable[..., AbstractAsyncContextManager[World]],
    keys: Keys,
    credential: Credential,
    names: tuple[str, ...],
) -> None:
    """If one key sent six requests before another sent one, not all six go first."""
    assert await served(run_world, keys, credential, "aaaaaab", {"a": 250, "b": 250}, names) == "aabaaaa"


async def test_a_key_whose_answers_were_long_waits_for_the_other(
    run_world: Callable[..., AbstractAsyncContextManager[World]], keys: Keys, credential: Credential
) -> None:
    """Both have the same estimate. With the estimates alone they would alternate."""
    assert await served(run_world, keys, credential, "aaaabbb", {"a": 10_000, "b": 10}) == "aabbbaa"


async def test_requests_with_one_beginning_go_to_one_replica(world: World, ok: Behaviour) -> None:
    upstreams = [await world.upstream(ok) for _ in range(3)]
    world.show(*(world.replica(upstream) for upstream in upstreams))
    for number in range(12):
        question = {"role": "user", "content": f"question {number}"}
        async with world.post({"model": "m", "messages": [*LONG, question]}) as response:
            assert response.status == 200
    assert sorted(len(upstream.requests) for upstream in upstreams) == [0, 0, 12]


async def test_requests_with_one_cache_key_go_to_one_replica_of_a_tenant(
    keyed: World, keys: Keys, ok: Behaviour
) -> None:
    keys.add("b")
    upstreams = [await keyed.upstream(ok) for _ in range(8)]
    keyed.show(*[keyed.replica(upstream) for upstream in upstreams])

    async def asked(key: str, hint: str | None) -> list[int]:
        before = [len(upstream.requests) for upstream in upstreams]
        for turn in range(4):
            await ask(keyed, keys.header(key), messages=f"{turn}" * 600, prompt_cache_key=hint)
        after = [len(upstream.requests) for upstream in upstreams]
        return [later - earlier for earlier, later in zip(before, after, strict=True)]

    homes = {(key, hint): await asked(key, hint) for key in "ab" for hint in ("one", "two", "three", None)}
    kept = [home.index(4) for (_, hint), home in homes.items() if hint is not None]
    assert len(set(kept)) > 1
    assert kept[:3] != kept[3:], "keys of one tenant do not affect another's"
    assert max(homes["a", None]) < 4


async def test_a_runtime_that_does_not_know_the_credential_is_told_of_once(
    keyed: World, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    async def believes(request: Request) -> None:
        request.respond(200, "{}", "content-type: application/json", "x-plimsoll-tenant: believed")

    async def ignores(request: Request) -> None:
        request.respond(200, "{}", "content-type: application/json")

    await keyed.model(believes, ignores)
    for _ in range(3):
        assert (await ask(keyed, keys.header("a")))[0] == 200
    assert await keyed.metric('plimsoll_gateway_unbelieved_total{model="m",namespace="ns"}') == 2
    assert caplog.text.count("treats all API keys as one tenant") == 1


async def test_what_runtimes_tell_the_gateway_goes_no_further(keyed: World, keys: Keys) -> None:
    async def tells(request: Request) -> None:
        load = "x-plimsoll-load: running=1, waiting=0, slots=8, kv=0.00"
        request.respond(200, "{}", "content-type: application/json", load, "x-plimsoll-tenant: believed")

    await keyed.model(tells)
    keyed.refresh()  # type: ignore[attr-defined]
    async with keyed.post(headers=keys.header("a")) as response:
        assert response.status == 200
        assert not [name for name in response.headers if name.lower().startswith("x-plimsoll")]


async def test_no_secret_is_in_logs_metrics_or_errors(
    keyed: World, keys: Keys, ok: Behaviour, resets: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged files, wrong keys, failures and retries, with the most detailed logging."""
    wrong = new_key()
    secrets = [*keys.texts.values(), wrong, CREDENTIAL]
    with caplog.at_level(logging.DEBUG):
        (keys.folder / "damaged.json").write_text(json.dumps({"hashes": [wrong], "model": [keys.texts["a"]]}))
        await keyed.model(resets, resets, ok)
        told = [await ask(keyed, keys.header("a")) for _ in range(2)]
        told.append(await ask(keyed, {"authorization": f"Bearer {wrong}"}))
        async with keyed.get("/metrics") as response:
            text = await response.text()
    assert [status for status, _ in told] == [502, 200, 401]
    assert 'plimsoll_gateway_damaged_keys{file="damaged.json"} 1.0' in text
    assert "plimsoll_gateway_keys 1.0" in text
    assert "damaged.json" in caplog.text
    for secret in secrets:
        assert secret not in caplog.text + text + json.dumps(told)
        assert str(digest_of(secret.encode())) not in caplog.text + text


async def test_a_key_is_renewed_while_the_gateway_runs(keyed: World, keys: Keys, ok: Behaviour) -> None:
    await keyed.model(ok)
    old = keys.header("a")
    assert (await ask(keyed, old))[0] == 200
    keys.add("a")
    assert [(await ask(keyed, header))[0] for header in (old, keys.header("a"))] == [401, 200]
    (keys.folder / "a.json").unlink()
    assert (await ask(keyed, keys.header("a")))[0] == 401, "without valid keys all requests are refused"


def test_a_credential_is_read_again_and_never_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    for text in ("", "short\n", "with space in between\n", "ümlaut-ümlaut-ümlaut"):
        file.write_text(text)
        with pytest.raises(CredentialError, match="16 to 256") as error:
            Credential(file)
        assert not text.strip() or text.strip() not in str(error.value)
    with pytest.raises(CredentialError, match="cannot read"):
        Credential(tmp_path / "missing")
    file.write_text(CREDENTIAL)
    credential = Credential(file)
    file.write_text("another-credential")
    credential.refresh()
    assert credential.current == "another-credential"
    file.write_text("short")
    for _ in range(3):
        credential.refresh()
    assert credential.current == "another-credential"
    assert caplog.text.count("continuing with the last credential") == 1


@pytest.mark.parametrize("accept", ["text/html", "*/*"])
async def test_the_page_at_the_root_names_models_for_their_keys_alone(keyed: World, keys: Keys, accept: str) -> None:
    models = [Model(ObjectKey("ns", n), (n,), 1.0, "", ()) for n in ("qwen-a", "secret")]
    keyed.store.replace(build_table(models))
    keys.add("q", models=["qwen-*"])
    keyed.refresh()  # type: ignore[attr-defined]

    async def seen(headers: dict[str, str]) -> tuple[int, bool, bool]:
        async with keyed.client.get(f"{keyed.url}/", headers={"accept": accept, **headers}) as response:
            text = await response.text()
            return response.status, "qwen-a" in text, "secret" in text

    assert await seen({}) == (200, False, False)
    assert await seen(keys.header("q")) == (200, True, False)
    assert await seen({"authorization": f"Bearer {new_key()}"}) == (401, False, False)
    assert await seen({"x-api-key": "wrong"}) == (401, False, False)
