"""Each route of docs/reference/host-api.json refuses a wrong or missing token before it reads the request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from host_support.fake_host import FakeHost

from plimsoll_operator.build.host import HostKey
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_runtime.api.host.access import Guard, hashed_tokens
from plimsoll_runtime.api.host.app import build_host_app
from plimsoll_runtime.api.host.models import HostModels

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "reference" / "host-api.json").read_text())
ROUTES: list[dict[str, Any]] = SCHEMA["routes"]
KEY, POOL = HostKey(b"o" * 32), ObjectKey("team", "shared")
TOKEN = KEY.token(POOL)
OPERATORS = "the operator's"
HEADERS: dict[str, dict[str, str]] = {
    OPERATORS: {"Authorization": f"Bearer {TOKEN}"},
    "none": {},
    "an empty one": {"Authorization": "Bearer "},
    "another pool's": {"Authorization": f"Bearer {KEY.token(ObjectKey('team', 'other'))}"},
    "a namesake's in another namespace": {"Authorization": f"Bearer {KEY.token(ObjectKey('guests', 'shared'))}"},
    "its hash": {"Authorization": f"Bearer {hashlib.sha256(TOKEN.encode()).hexdigest()}"},
    "a part of it": {"Authorization": f"Bearer {TOKEN[:-1]}"},
    "more than it": {"Authorization": f"Bearer {TOKEN}0"},
    "another scheme": {"Authorization": f"Basic {TOKEN}"},
    "no scheme": {"Authorization": TOKEN},
    "another header": {"X-Api-Key": TOKEN},
}
BODIES: dict[str, Any] = {
    "PlaceRequest": {"operation": "o", "level": "OnDisk", "spec": {"revision": "1", "source": "demo://x"}},
    "RemoveRequest": {"operation": "o"},
    "WakeRequest": {"operation": "o"},
    "SleepRequest": {"operation": "o", "level": "OnDisk"},
    "PinRequest": {"operation": "o", "pinned": False},
}


@pytest.fixture
def host() -> FakeHost:
    made = FakeHost(object)
    made.add("team/m")
    return made


@pytest.fixture
async def client(host: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a host that knows its tokens as pods do."""
    app = build_host_app(host, HostModels(host), Guard(hashed_tokens(KEY.token_hash(POOL), "tokens")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as made:
        yield made


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route['method']} {route['path']}")
@pytest.mark.parametrize("whose", HEADERS)
async def test_a_route_is_open_to_the_operator_alone(
    client: httpx.AsyncClient, host: FakeHost, route: dict[str, Any], whose: str
) -> None:
    body = BODIES[route["request"].rpartition("/")[2]] if route["request"] else None
    url = route["path"].format(namespace="team", name="m")
    before = list(host.seen)
    answer = await client.request(route["method"], url, json=body, headers=HEADERS[whose])
    if whose == OPERATORS:
        assert answer.status_code in (200, 202), answer.text
        return
    assert answer.status_code == 401, answer.text
    assert host.seen == before, "no action was taken"
    assert TOKEN not in answer.text
    broken = await client.request(route["method"], url, content=b"{", headers=HEADERS[whose])
    assert broken.status_code == answer.status_code, "no body was read"


def test_every_kind_of_body_is_sent() -> None:
    assert {route["request"].rpartition("/")[2] for route in ROUTES if route["request"]} == BODIES.keys()
