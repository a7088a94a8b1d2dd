"""The host API: tokens, requests, responses, and what is never logged."""

import asyncio
import logging
from typing import Any

import pytest

from plimsoll_runtime.api.host import requests as requests_module
from plimsoll_runtime.errors import MemoryLimitError, SourceError
from plimsoll_runtime.residency.errors import DoesNotFit, Refused
from plimsoll_runtime.residency.spec import ModelName

TOKEN = "full-token-1"
SPEC = {"revision": "1", "source": "hf://org/m", "servedNames": ["m"]}
PLACE = {"operation": "op-1", "spec": SPEC, "level": "InHost"}
NAME = ModelName("team", "m")
ROUTES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/report", None),
    ("POST", "/models/team/m/wake", {"operation": "a"}),
    ("POST", "/models/team/m/sleep", {"operation": "b", "level": "OnDisk"}),
    ("POST", "/models/team/m/pin", {"operation": "c", "pinned": True}),
    ("PUT", "/models/team/m", PLACE),
    ("DELETE", "/models/team/m", {"operation": "d"}),
]


async def send(hosting: Any, method: str, path: str, body: Any = None, token: str | None = TOKEN) -> Any:
    async with hosting.api(token) as api:
        return await api.request(method, path, json=body)


async def test_the_life_of_a_model(hosting: Any) -> None:
    placed = await send(hosting, "PUT", "/models/team/m", PLACE)
    assert placed.status_code == 200
    assert (placed.json()["namespace"], placed.json()["state"], placed.json()["revision"]) == ("team", "InHost", "1")
    woken = await send(hosting, "POST", "/models/team/m/wake", {"operation": "op-2"})
    assert (woken.status_code, woken.json()["state"]) == (200, "Resident")
    pinned = await send(hosting, "POST", "/models/team/m/pin", {"operation": "op-3", "pinned": True, "weight": 2.5})
    assert (pinned.json()["pinned"], pinned.json()["weight"], pinned.json()["priority"]) == (True, 2.5, 0)
    asleep = await send(hosting, "POST", "/models/team/m/sleep", {"operation": "op-4", "level": "InHost"})
    assert asleep.json()["state"] == "InHost"
    removed = await send(hosting, "DELETE", "/models/team/m", {"operation": "op-5"})
    assert (removed.status_code, removed.json()) == (200, None)
    assert [content[0] for content in hosting.host.seen] == ["place", "wake", "pin", "sleep", "remove"]
    gone = await send(hosting, "POST", "/models/team/m/wake", {"operation": "op-6"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_placed")


async def test_what_goes_on_is_told_so(hosting: Any) -> None:
    hosting.host.done = False
    assert (await send(hosting, "PUT", "/models/team/m", PLACE)).status_code == 202


async def test_the_same_operation_again_has_no_second_effect(hosting: Any) -> None:
    first = await send(hosting, "PUT", "/models/team/m", PLACE)
    again = await send(hosting, "PUT", "/models/team/m", PLACE)
    assert (first.json(), len(hosting.host.seen)) == (again.json(), 1)
    other = await send(hosting, "PUT", "/models/team/m", PLACE | {"level": "Resident"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "operation_conflict")


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DoesNotFit("it needs 9 GiB of 4"), 507, "does_not_fit"),
        (MemoryLimitError("it needed more than it was granted"), 507, "out-of-memory"),
        (Refused("load_failed", "three loads have failed", 30.0), 503, "load_failed"),
        (SourceError("hf://org/m does not exist"), 400, "model-source"),
    ],
)
async def test_what_does_not_come_to_its_end_says_why(hosting: Any, error: Any, status: int, code: str) -> None:
    hosting.host.error = error
    answer = await send(hosting, "PUT", "/models/team/m", PLACE)
    assert (answer.status_code, answer.json()) == (status, {"error": {"code": code, "message": str(error)}})
    assert answer.headers.get("retry-after") == ("30" if status == 503 else None)


async def test_each_route_asks_for_a_token(hosting: Any) -> None:
    hosting.host.add("team/m")
    for method, path, body in ROUTES:
        for token in (None, "full-token", "full-token-12", "Full-token-1"):
            answer = await send(hosting, method, path, body, token)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (path, token)
            assert answer.json()["error"]["code"] == "unauthorized"
    assert hosting.host.seen == []


WRONG: dict[str, tuple[Any, str]] = {
    "no operation": ({key: PLACE[key] for key in ("spec", "level")}, "operation"),
    "empty operation": (PLACE | {"operation": ""}, "operation"),
    "operation no text": (PLACE | {"operation": 7}, "operation"),
    "level unknown": (PLACE | {"level": "Awake"}, "level"),
    "no level": ({key: PLACE[key] for key in ("operation", "spec")}, "level"),
    "unknown field": (PLACE | {"levle": "InHost"}, "levle"),
    "no source": (PLACE | {"spec": {"revision": "1"}}, "source"),
    "spec no object": (PLACE | {"spec": []}, "spec"),
    "spec's unknown field": (PLACE | {"spec": SPEC | {"replicas": 2}}, "replicas"),
    "server's option": (PLACE | {"spec": SPEC | {"runtime": {"maxWaiting": 0}}}, "maxWaiting"),
    "no object": ([], "object"),
}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("what", WRONG)
async def test_what_is_wrong_with_a_body_is_named(hosting: Any, what: str) -> None:
    body, field = WRONG[what]
    answer = await send(hosting, "PUT", "/models/team/m", body)
    assert (answer.status_code, answer.json()["error"]["code"]) in ((400, "invalid"), (400, "usage"))
    assert field in answer.json()["error"]["message"]
    assert hosting.host.seen == []


DEEP = (
    b'{"operation": "x", "level": "InHost", "spec": {"revision": "1", "source": "x", "runtime": {"a": ' + b"[" * 60_000
)


async def test_what_is_no_json_is_refused(hosting: Any) -> None:
    async with hosting.api() as api:
        for content, kind, told in (
            (b"{", "application/json", "not valid JSON"),
            (b'{"operation": ' + b"[" * 60_000, "application/json", "operation"),
            (DEEP, "application/json", "not valid JSON"),
            (b"\xff", "application/json", "not valid JSON"),
            (b'{"operation": "\xff"}', "application/json", "not valid JSON"),
            (b"{}", "text/plain", "Content-Type"),
        ):
            answer = await api.put("/models/team/m", content=content, headers={"Content-Type": kind})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")
            assert told in answer.json()["error"]["message"]


async def test_bodies_are_bounded_in_size_and_time(hosting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await send(hosting, "PUT", "/models/team/m", PLACE | {"operation": "x" * 2**16})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    monkeypatch.setattr(requests_module, "BODY_SECONDS", 0.05)
    host, port = hosting.host_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    writer.write(b"PUT /host/v1/models/team/m HTTP/1.1\r\n" + head.encode() + b"{")
    async with asyncio.timeout(60):
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_names_are_those_of_kubernetes(hosting: Any) -> None:
    for path in ("/models/Team/m", "/models/team/m_1", f"/models/team/{'m' * 254}"):
        answer = await send(hosting, "PUT", path, PLACE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "usage"), path


async def test_a_name_belongs_to_one_model(hosting: Any) -> None:
    await send(hosting, "PUT", "/models/team/m", PLACE)
    answer = await send(hosting, "PUT", "/models/team/other", PLACE | {"operation": "op-2"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("spec.servedNames: 'm' is a name of team/m")
    renewed = PLACE | {"operation": "op-3", "spec": SPEC | {"revision": "2"}}
    assert (await send(hosting, "PUT", "/models/team/m", renewed)).json()["revision"] == "2"


async def test_the_report_waits_for_news(hosting: Any) -> None:
    hosting.host.add("team/m")
    now = (await send(hosting, "GET", "/report")).json()
    assert (now["instance"], now["models"][0]["servedNames"], now["device"]["line"]) == ("fake", ["m"], 90)
    waiting = asyncio.create_task(send(hosting, "GET", f"/report?after={now['sequence']}&wait=20"))
    assert (await send(hosting, "GET", f"/report?after={now['sequence']}")).json() == now
    hosting.host.add("team/other")
    assert len((await waiting).json()["models"]) == 2
    # A client of an earlier instance must not wait until this one has caught up.
    assert (await send(hosting, "GET", "/report?after=1000000&wait=20")).json()["sequence"] < 1000000


async def test_queries_are_checked(hosting: Any) -> None:
    for query in ("after=x", "after=-2", "wait=x", "wait=-1", "wait=61", "wait=nan"):
        answer = await send(hosting, "GET", f"/report?{query}")
        assert answer.status_code == 400, query
        assert answer.json()["error"]["message"].startswith(query.partition("=")[0])


async def test_unknown_paths_and_methods_are_in_shape(hosting: Any) -> None:
    unknown = await send(hosting, "GET", "/models")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_path")
    wrong = await send(hosting, "POST", "/report", {})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_neither_api_is_on_the_others_port(hosting: Any) -> None:
    async with hosting.http() as http:
        assert (await http.get("/host/v1/report", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 404
    assert (await send(hosting, "GET", "/../../v1/models")).status_code == 404


async def test_no_token_is_ever_logged(run_host: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with run_host() as hosting:
        spec = SPEC | {"token": "hf_secret"}
        await send(hosting, "PUT", "/models/team/m", PLACE | {"spec": spec})
        await send(hosting, "PUT", "/models/team/m", PLACE | {"spec": spec, "operation": "x", "level": "Nowhere"})
        await send(hosting, "PUT", "/models/team/m", PLACE | {"spec": spec | {"weight": "much"}, "operation": "y"})
        await send(hosting, "PUT", "/models/team/m", PLACE | {"spec": spec | {"token": ["hf_secret"]}})
        for method, path, body in ROUTES:
            for token in (TOKEN, "wrong-token-1"):
                await send(hosting, method, path, body, token)
        text = (await send(hosting, "GET", "/report")).text
        hosting.host.place = None
        await send(hosting, "PUT", "/models/team/m", PLACE | {"spec": spec, "operation": "z"})
    assert "team/m" in caplog.text
    assert "failed" in caplog.text  # with a traceback
    for secret in (TOKEN, "wrong-token-1", "hf_secret"):
        assert secret not in caplog.text
        assert secret not in text
