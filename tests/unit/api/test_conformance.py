"""Schemathesis sends requests that the OpenAPI document allows and forbids: every status, type and body of a
response must be in the document. Through a gateway, the gateway's own document applies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
import schemathesis
from gateway_support.front import gateway_before
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation.case import Case
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.options import BatchOptions

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
BOUNDS = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
"""Requests that the document allows, and as many that it forbids, for each operation."""
POOLED = {
    "/v1/embeddings": "embed",
    "/v1/score": "embed",
    "/v1/rerank": "embed",
    "/v2/rerank": "embed",
    "/v1/classify": "classify",
}
"""Tasks of the models that serve the path."""
INFOS = {
    "embed": PoolingInfo("embed", 4),
    "classify": PoolingInfo("classify", 3, labels=("bad", "good", "odd"), scale="softmax"),
}


@dataclass(frozen=True)
class Front:
    """Addresses of models for each task, and the OpenAPI document of the server."""

    urls: dict[str, str]
    document: dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["the runtime", "a gateway"])
async def front(
    request: Any, keep_server: Callable[..., Awaitable[Any]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Front]:
    kept = BatchOptions(tmp_path_factory.mktemp("kept") / "files")
    servers = {task: await keep_server(pooling=info) for task, info in INFOS.items()}
    servers["generate"] = await keep_server(batches=kept)
    urls = {task: server.url for task, server in servers.items()}
    if request.param == "the runtime":
        yield Front(urls, await document_at(urls["generate"]))
        return
    async with (
        gateway_before(urls["generate"], ("fake",), files_model="fake") as generate,
        gateway_before(urls["embed"], ("fake",)) as embed,
        gateway_before(urls["classify"], ("fake",)) as classify,
    ):
        shown = {"generate": generate, "embed": embed, "classify": classify}
        yield Front(shown, await document_at(generate))


async def document_at(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        answer = await http.get("/openapi.json")
        assert answer.headers["content-type"] == "application/json"
        page = await http.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.json()["info"]["title"] in page.text
    found: dict[str, Any] = answer.json()
    return found


def ask_all(front: Front) -> Counter[tuple[str, int]]:
    """Send requests to every operation; return the count of each status. Raises what a check finds."""
    statuses: Counter[tuple[str, int]] = Counter()
    for result in schemathesis.openapi.from_dict(front.document).get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        url = front.urls[POOLED.get(operation.path, "generate")]
        for mode in GenerationMode if operation.body else (GenerationMode.POSITIVE,):
            examples = operation.as_strategy(generation_mode=mode)

            @BOUNDS
            @given(examples)
            def asked(case: Case[Any]) -> None:
                ask(url, statuses, case)  # noqa: B023  called before the loop goes on

            asked()
    return statuses


def ask(url: str, statuses: Counter[tuple[str, int]], case: Case[Any]) -> None:
    """Send one request, usually for the existing model."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "fake"
    response = case.call(base_url=url, timeout=120)
    statuses[case.operation.label, response.status_code] += 1
    case.validate_response(response, checks=CHECKS)


@pytest.mark.long
async def test_what_may_be_asked_is_answered_as_described(front: Front) -> None:
    statuses = await asyncio.to_thread(ask_all, front)
    answered = {label for label, status in statuses if status == 200}
    assert {label for label, _ in statuses} >= {
        f"{method.upper()} {path}" for path, methods in front.document["paths"].items() for method in methods
    }
    assert len(answered) > len(front.document["paths"]) / 2, "some must come so far that there is an answer to check"
