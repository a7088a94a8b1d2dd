"""Requests to the API server: which errors are raised, and which are ignored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from plimsoll_cluster.connection import Connection
from plimsoll_operator.kube import api as module
from plimsoll_operator.kube.api import Api, ApiError
from plimsoll_operator.kube.stores import PODS, SERVICES
from plimsoll_operator.spec.identity import ObjectKey

KEY = ObjectKey("team", "gemma")
ITEM = {
    "apiVersion": "plimsoll.dev/v1alpha1",
    "kind": "ModelDeployment",
    "metadata": {"name": "gemma", "namespace": "team", "uid": "u"},
}


@dataclass
class ApiServer:
    """Returns the same response to every request."""

    status: int = 200
    text: str | bytes = "{}"
    hangs_up: bool = False
    requests: list[tuple[str, str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path_qs, await request.text()))
        if self.hangs_up:
            assert request.transport is not None
            request.transport.close()
        body = self.text.encode() if isinstance(self.text, str) else self.text
        return web.Response(status=self.status, body=body, content_type="application/json")


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with (
        TestServer(app) as running,
        Connection(client.Configuration(host=str(running.make_url("")).rstrip("/"))) as http,
    ):
        yield Api(http)


@pytest.mark.matrix(6)
@pytest.mark.parametrize(
    ("code", "refusal", "passing"),
    [
        (400, True, False),
        (401, False, True),
        (403, True, False),
        (404, False, True),
        (409, False, True),
        (422, True, False),
        (429, False, True),
        (500, False, False),
        (503, False, True),
        (504, False, True),
    ],
)
async def test_errors(api: Api, server: ApiServer, code: int, refusal: bool, passing: bool) -> None:
    server.status, server.text = code, '{"kind": "Status", "message": "what is wrong"}'
    with pytest.raises(ApiError, match=r"^what is wrong$") as raised:
        await api.create(PODS, {"metadata": {"namespace": "team"}}, strict=True)
    assert (raised.value.code, raised.value.is_refusal, raised.value.is_passing) == (code, refusal, passing)


async def test_a_refusal_for_want_of_its_pool_passes(api: Api, server: ApiServer) -> None:
    """A later try finds the pool, or finds it deleted; rejections by other policies stay rejections."""
    for words, passing in (("no params found for policy binding with `Deny`", True), ("failed expression", False)):
        server.status, server.text = 422, json.dumps({"message": f"ValidatingAdmissionPolicy 'p' denied: {words}"})
        with pytest.raises(ApiError) as raised:
            await api.create(PODS, {"metadata": {"namespace": "team"}}, strict=True)
        assert (raised.value.is_passing, raised.value.is_refusal) == (passing, not passing)


@pytest.mark.parametrize("text", ["bad gateway", "[]", "null", '{"message": null}'])
async def test_an_error_of_something_in_between(api: Api, server: ApiServer, text: str) -> None:
    server.status, server.text = 502, text
    with pytest.raises(ApiError) as raised:
        await api.get(SERVICES, KEY)
    assert str(raised.value) == text


NESTED = b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize("text", [b'{"message": "\xff"}', NESTED])
async def test_an_error_that_cannot_be_read_keeps_its_status(api: Api, server: ApiServer, text: bytes) -> None:
    server.status, server.text = 403, text
    with pytest.raises(ApiError) as raised:
        await api.get(SERVICES, KEY)
    assert raised.value.code == 403


@pytest.mark.parametrize("text", [b"<html>", b"", b'{"metadata": {"name": "\xff"}}', NESTED])
async def test_a_good_answer_that_cannot_be_read_leaves_unsure_what_was_done(
    api: Api, server: ApiServer, text: bytes
) -> None:
    server.text = text
    with pytest.raises(ApiError, match="the API server's response is not valid JSON") as raised:
        await api.create(PODS, {"metadata": {"namespace": "team"}}, strict=True)
    assert raised.value.is_unsure
    assert raised.value.is_passing


@pytest.mark.parametrize(("code", "unsure"), [(409, False), (429, False), (500, True), (503, True), (504, True)])
def test_what_may_have_been_done_all_the_same(code: int, unsure: bool) -> None:
    assert ApiError(code, "no").is_unsure is unsure


async def test_nobody_answers(api: Api, server: ApiServer) -> None:
    server.hangs_up = True
    with pytest.raises(ApiError, match="is not reachable") as raised:
        await api.create(PODS, {"metadata": {"namespace": "team"}}, strict=True)
    assert raised.value.code is None
    assert raised.value.is_passing
    assert raised.value.is_unsure


async def test_too_slow(api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 1e-9)
    with pytest.raises(ApiError, match="is not reachable"):
        await api.lease(KEY)


async def test_what_is_not_there_is_none(api: Api, server: ApiServer) -> None:
    server.status = 404
    assert (await api.get(SERVICES, KEY), await api.lease(KEY)) == (None, None)


@pytest.mark.parametrize("code", [404, 409])
async def test_what_is_gone_needs_no_deleting_and_takes_no_status(api: Api, server: ApiServer, code: int) -> None:
    server.status = code
    await api.delete(PODS, KEY, "u")
    with pytest.raises(ApiError) as raised:
        await api.apply_status(ITEM, {"phase": "Ready"})
    assert not raised.value.is_unsure
    assert [method for method, *_ in server.requests] == ["DELETE", "PATCH"]
    assert '"uid":"u"' in server.requests[0][2]
    assert '"uid":"u"' in server.requests[1][2]


async def test_other_errors_of_them_are_told(api: Api, server: ApiServer) -> None:
    server.status = 403
    with pytest.raises(ApiError):
        await api.delete(PODS, KEY, "u")
    with pytest.raises(ApiError):
        await api.apply_status(ITEM, {})


async def test_typing_errors_in_a_pod_are_refused_by_the_server(api: Api, server: ApiServer) -> None:
    await api.create(PODS, {"metadata": {"namespace": "team"}}, strict=True)
    assert server.requests[0][:2] == (
        "POST",
        "/api/v1/namespaces/team/pods?fieldManager=plimsoll-operator&fieldValidation=Strict",
    )


@pytest.mark.parametrize("allowed", [True, False])
async def test_what_may_be_done(api: Api, server: ApiServer, allowed: bool) -> None:
    server.text = json.dumps({"status": {"allowed": allowed}})
    assert await api.may(("plimsoll.dev", "modeldeployments/status", "patch"), "team", "m") is allowed
    method, _, body = server.requests[0]
    assert method == "POST"
    assert json.loads(body)["spec"]["resourceAttributes"] == {
        "group": "plimsoll.dev",
        "resource": "modeldeployments",
        "subresource": "status",
        "verb": "patch",
        "namespace": "team",
        "name": "m",
    }


async def test_a_refusal_tells_that_the_namespace_ends(api: Api, server: ApiServer) -> None:
    server.status = 403
    for causes, ends in (([{"reason": "NamespaceTerminating"}], True), ([{"reason": "Other"}], False), (None, False)):
        server.text = json.dumps({"message": "no", "details": {"causes": causes}})
        with pytest.raises(ApiError, match="no") as caught:
            await api.create(PODS, {"metadata": {"namespace": "team", "name": "m-1"}}, strict=True)
        assert caught.value.namespace_ends is ends
