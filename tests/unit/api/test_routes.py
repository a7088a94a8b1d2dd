"""Everything around the two main endpoints: probes, models, tokens, keys, limits, errors."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import openai
import pytest
import pytest_asyncio

from plimsoll_runtime import __version__
from plimsoll_runtime.api.http import body as body_module
from plimsoll_runtime.api.server import listener as protocol_module

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = {"model": "fake", "prompt": "Hi"}


@pytest_asyncio.fixture(loop_scope="module")
async def locked(run_server: Any) -> AsyncIterator[Any]:
    async with run_server(api_keys=("first", "second")) as server:
        yield server


async def test_models(running: Any) -> None:
    client = running.openai()
    models = [model async for model in client.models.list()]
    assert [(m.id, m.object, m.created, m.owned_by) for m in models] == [
        ("fake", "model", 1_700_000_000, "plimsoll"),
        ("alias", "model", 1_700_000_000, "plimsoll"),
    ]
    assert (await client.models.retrieve("alias")).model_extra["max_model_len"] == 4096
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("org/other")


async def test_probes_and_version(running: Any) -> None:
    async with running.http() as http:
        assert (await http.get("/health")).json() == {"status": "ready"}
        assert (await http.head("/health")).status_code == 200
        assert (await http.get("/live")).status_code == 200
        assert (await http.get("/version")).json() == {"version": __version__}


async def test_tokenize_and_detokenize(running: Any) -> None:
    async with running.http() as http:
        answer = await http.post("/tokenize", json={"model": "fake", "prompt": "Hi", "return_token_strs": True})
        assert answer.json() == {
            "count": 3,
            "max_model_len": 4096,
            "tokens": [256, 72, 105],
            "token_strs": ["<s>", "H", "i"],
        }
        answer = await http.post("/tokenize", json={"prompt": "Hi", "add_special_tokens": False})
        assert answer.json()["tokens"] == [72, 105]
        answer = await http.post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]})
        assert answer.json()["tokens"] == [256, 258, 72, 105, 259]
        answer = await http.post("/detokenize", json={"tokens": [256, 72, 105]})
        assert answer.json() == {"prompt": "<s>Hi"}
        refused = await http.post("/detokenize", json={"tokens": [263, 264]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")
        assert "264 is not in the vocabulary of 264" in refused.json()["error"]["message"]
        for wrong in ({}, {"prompt": "a", "messages": [{"role": "user", "content": "Hi"}]}):
            refused = await http.post("/tokenize", json=wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
        assert (await http.post("/tokenize", json={"model": "x", "prompt": ""})).status_code == 404


async def test_a_long_text_is_tokenised_beside_the_event_loop(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(_text: str, *, add_special_tokens: bool) -> list[int]:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(60)
        return [int(add_special_tokens)]

    monkeypatch.setattr(running.server.state.models.model.tokenizer, "encode", slow)
    async with running.http() as http:
        call = asyncio.create_task(http.post("/tokenize", json={"prompt": "x" * 4000}))
        await begun.wait()
        assert (await http.get("/live")).status_code == 200
        assert not call.done()
        go_on.set()
        assert (await call).json()["tokens"] == [1]


async def test_a_key_of_any_letters(run_server: Any) -> None:
    async with run_server(api_keys=("ключ",)) as server, server.http() as http:
        right = await http.post("/v1/completions", json=BODY, headers={"Authorization": "Bearer ключ".encode()})
        wrong = await http.post("/v1/completions", json=BODY, headers={"Authorization": "Bearer ключи".encode()})
        assert (right.status_code, wrong.status_code) == (200, 401)


async def test_a_body_that_stalls_is_given_up(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "IDLE_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection(running.host, running.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    async with asyncio.timeout(60):
        answer = await reader.read()  # to the end: the connection is closed
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"No more data of the body arrived for 0.05 s." in answer
    assert running.server.state.in_flight == 0


async def test_a_head_that_does_not_end_is_given_up(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a request gets no response: the client would take it for the response to its first
    request."""
    monkeypatch.setattr(protocol_module, "HEAD_SECONDS", 0.5)
    clients = []
    for number in range(20):
        clients.append(await asyncio.open_connection(running.host, running.port))
        if number:
            clients[-1][1].write(b"GET /live HTTP/1.1\r\nHost: x\r\nX-")
    async with asyncio.timeout(60):
        answers = [await reader.read() for reader, _ in clients]  # to the end: the connections are closed
    for _, writer in clients:
        writer.close()
    assert answers[0] == b""
    for answer in answers[1:]:
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"The headers of the request did not end within 0.5 s." in answer


async def test_keys(locked: Any) -> None:
    for key in ("first", "second"):
        assert await locked.openai(key).completions.create(model="fake", prompt="a")
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key") as refused:
        await locked.openai("third").completions.create(model="fake", prompt="a")
    assert refused.value.code == "invalid_api_key"
    async with locked.http() as http:
        missing = await http.post("/v1/completions", json=BODY)
        assert (missing.status_code, missing.headers["www-authenticate"]) == (401, "Bearer")
        assert "Missing API key" in missing.json()["error"]["message"]
        for wrong in ("first", "Basic first", "Bearer", "Bearer first second", "Bearer \u00e4"):
            headers = {"Authorization": wrong.encode("latin-1")}
            assert (await http.get("/v1/models", headers=headers)).status_code == 401, wrong
        assert (await http.get("/v1/models", headers={"Authorization": "bearer second"})).status_code == 200
        assert (await http.get("/no/such/path")).status_code == 401
        for path in ("/health", "/live", "/metrics"):
            assert (await http.get(path)).status_code == 200, path


async def test_unknown_paths_and_methods_are_in_shape(running: Any) -> None:
    async with running.http() as http:
        unknown = await http.get("/v1/nowhere")
        assert unknown.status_code == 404
        assert unknown.json()["error"]["message"] == "Unknown path: GET /v1/nowhere."
        for path in ("/v1/audio/speech", "/v1/images/generations", "/v1/moderations"):
            error = (await http.post(path)).json()["error"]
            assert error["code"] == "not_offered"
            assert f"not offered by this server (POST {path})" in error["message"]
        wrong = await http.get("/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert "Method not allowed" in wrong.json()["error"]["message"]


async def test_content_types(running: Any) -> None:
    content = b'{"model": "fake", "prompt": "a"}'
    async with running.http() as http:
        for kind in ("application/json", "application/json; charset=utf-8", "application/vnd.api+json"):
            answer = await http.post("/v1/completions", content=content, headers={"Content-Type": kind})
            assert answer.status_code == 200, kind
        for kind in ("text/plain", "multipart/form-data; boundary=x", ""):
            answer = await http.post("/v1/completions", content=content, headers={"Content-Type": kind})
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "unsupported_content_type"
            assert "Content-Type" in error["message"]


@pytest.mark.parametrize("prefix", ["/v1", "/v1/", "//v1"])
@pytest.mark.parametrize("end", ["", "/", "//"])
async def test_doubled_and_trailing_slashes_change_no_path(running: Any, prefix: str, end: str) -> None:
    """Clients send such paths if their base URL ends in a slash."""
    async with running.http() as http:
        base = f"http://{http.base_url.host}:{http.base_url.port}"
        assert len((await http.get(f"{base}{prefix}/models{end}")).json()["data"]) == 2
        assert (await http.get(f"{base}{prefix}/models/alias{end}")).json()["id"] == "alias"
        assert (await http.post(f"{base}{prefix}/completions{end}", json=BODY)).status_code == 200


async def test_every_answer_has_a_request_id(running: Any) -> None:
    async with running.http() as http:
        made = (await http.post("/v1/completions", json=BODY)).headers["x-request-id"]
        assert len(made) == 32
        headers = {"X-Request-Id": "mine-1"}
        answer = await http.post("/v1/completions", json=BODY, headers=headers)
        assert (answer.headers["x-request-id"], answer.json()["id"]) == ("mine-1", "cmpl-mine-1")
        assert "mine" not in running.engine.asked[-1].request_id
        headers = {"X-Request-Id": "two words"}
        answer = await http.post("/v1/completions", json=BODY, headers=headers)
        assert len(answer.headers["x-request-id"]) == 32


async def test_the_log_has_a_line_for_each_request_and_no_prompt(
    running: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "plimsoll_runtime")
    async with running.http() as http:
        await http.post("/v1/completions", json={"model": "fake", "prompt": "a secret"})
        await http.get("/health")
        await http.get("/v1/secrets")
    lines = [r.getMessage() for r in caplog.records if r.name == "plimsoll_runtime.api.server.access"]
    assert len(lines) == 2
    assert "POST /v1/completions 200" in lines[0]
    assert "9 prompt tokens (16 cached), 7 generated, stop" in lines[0]
    assert "GET other 404" in lines[1], "a path that the API does not have is text of the client"
    assert "secret" not in caplog.text


async def test_a_failure_of_ours_is_logged_and_in_shape(
    running: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_request: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(running.engine, "generate", broken)
    async with running.http() as http:
        answer = await http.post("/v1/completions", json=BODY)
    assert answer.status_code == 500
    assert "The server failed; see its log" in answer.json()["error"]["message"]
    assert "a bug" in caplog.text


@pytest.mark.asyncio(loop_scope="function")
async def test_health_says_why_ranks_are_replaced(fresh: Any) -> None:
    engine = fresh.engine
    engine.stats = msgspec.structs.replace(engine.stats, recovering=True)
    async with fresh.http() as http:
        answer = await http.get("/health")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "recovering",
        "reason": "rank 3 was killed by signal 9",
        "stage": "wait for member 1",
    }


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.parametrize("recovering", [False, True])
async def test_health_has_the_instruction_set_of_members_that_differ(fresh: Any, recovering: bool) -> None:
    stats, said = fresh.engine.stats, "the group computes with avx2, the least of its members"
    async with fresh.http() as http:
        assert (await http.get("/health")).json() == {"status": "ready"}
        group = msgspec.structs.replace(stats.group, instruction_set=said)
        fresh.engine.stats = msgspec.structs.replace(stats, recovering=recovering, group=group)
        assert (await http.get("/health")).json()["instruction_set"] == said


@pytest.mark.asyncio(loop_scope="function")
async def test_metrics(fresh: Any) -> None:
    async with fresh.http() as http:
        await http.post("/v1/completions", json=BODY | {"n": 2})
        await http.post("/v1/completions", json=BODY | {"n": 0})
        await http.get("/nowhere")
        text = (await http.get("/metrics")).text
    for line in (
        'plimsoll_requests_total{code="200",endpoint="/v1/completions",model="fake",namespace=""} 1.0',
        'plimsoll_requests_total{code="400",endpoint="/v1/completions",model="fake",namespace=""} 1.0',
        'plimsoll_requests_total{code="404",endpoint="other",model="fake",namespace=""} 1.0',
        'plimsoll_answers_total{finish_reason="stop",model="fake",namespace=""} 2.0',
        'plimsoll_time_to_first_token_seconds_count{model="fake",namespace=""} 1.0',
        'plimsoll_inter_token_seconds_count{model="fake",namespace=""} 12.0',
        'plimsoll_request_seconds_count{model="fake",namespace=""} 1.0',
        'plimsoll_request_prompt_tokens_sum{model="fake",namespace=""} 3.0',
        'plimsoll_request_completion_tokens_sum{model="fake",namespace=""} 14.0',
        'plimsoll_ready{model="fake",namespace=""} 1.0',
        'plimsoll_sequences_running{model="fake",namespace=""} 1.0',
        'plimsoll_kv_usage_ratio{model="fake",namespace=""} 0.25',
        'plimsoll_preemptions_total{model="fake",namespace=""} 3.0',
        'plimsoll_prefix_query_tokens_total{model="fake",namespace=""} 400.0',
        'plimsoll_prefix_hit_tokens_total{model="fake",namespace=""} 300.0',
        'plimsoll_evictions_total{model="fake",namespace=""} 7.0',
        'plimsoll_attention_fallbacks_total{model="fake",namespace=""} 2.0',
        'plimsoll_kernels_compiled_total{model="fake",namespace=""} 5.0',
        'plimsoll_tier_host_blocks{model="fake",namespace=""} 4.0',
        'plimsoll_tier_disk_blocks{model="fake",namespace=""} 90.0',
        'plimsoll_tier_blocks_under_way{model="fake",namespace=""} 3.0',
        'plimsoll_tier_hit_tokens_total{model="fake",namespace=""} 96.0',
        'plimsoll_tier_spilled_blocks_total{model="fake",namespace=""} 50.0',
        'plimsoll_tier_dropped_blocks_total{model="fake",namespace=""} 2.0',
        'plimsoll_tier_loaded_blocks_total{model="fake",namespace=""} 6.0',
        'plimsoll_tier_failed_blocks_total{model="fake",namespace=""} 1.0',
        'plimsoll_tier_passed_blocks_total{model="fake",namespace=""} 8.0',
        'plimsoll_state_snapshots{model="fake",namespace=""} 12.0',
        'plimsoll_state_snapshots_kept{model="fake",namespace=""} 9.0',
        'plimsoll_state_snapshots_taken_total{model="fake",namespace=""} 31.0',
        'plimsoll_state_snapshots_resumed_total{model="fake",namespace=""} 21.0',
        'plimsoll_group_generation{model="fake",namespace=""} 17.0',
        'plimsoll_group_generations_lost_total{cause="rank_ended",model="fake",namespace=""} 2.0',
        'plimsoll_group_generations_lost_total{cause="other",model="fake",namespace=""} 0.0',
        'plimsoll_group_refused_connections_total{model="fake",namespace=""} 4.0',
        'plimsoll_rank_wait_seconds_total{model="fake",namespace="",rank="0"} 1.5',
        'plimsoll_rank_wait_seconds_total{model="fake",namespace="",rank="10"} 0.25',
        'plimsoll_step_seconds_total{model="fake",namespace="",phase="schedule"} 0.5',
        'plimsoll_step_seconds_total{model="fake",namespace="",phase="forward"} 8.0',
        'plimsoll_step_seconds_total{model="fake",namespace="",phase="message"} 0.5',
    ):
        assert line in text.splitlines(), line
    assert 'phase="events"' not in text


@pytest.mark.asyncio(loop_scope="function")
async def test_metrics_of_the_servers_own_work(fresh: Any) -> None:
    async def seconds(http: Any, phase: str) -> float:
        name = f'plimsoll_answer_seconds_total{{model="fake",namespace="",phase="{phase}"}} '
        lines = (await http.get("/metrics")).text.splitlines()
        return float(next((line.removeprefix(name) for line in lines if line.startswith(name)), 0))

    async with fresh.http() as http:
        await http.post("/v1/completions", json=BODY)
        whole = await seconds(http, "detokenise")
        assert 0 < whole < 60
        assert await seconds(http, "send") == 0
        await http.post("/v1/completions", json=BODY | {"stream": True})
        assert 0 < await seconds(http, "send") < 60
        assert await seconds(http, "detokenise") > whole
