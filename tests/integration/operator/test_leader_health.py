"""The whole operator asks the leader of a group over HTTP, and `kubectl describe` shows its words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web
from operator_support.apiserver import ApiServer, until
from operator_support.direct import Direct
from operator_support.kubelets import loopback_addresses
from operator_support.objects import Json
from operator_support.running import running

from plimsoll_operator.spec.identity import INDEX_LABEL, PORT

pytestmark = pytest.mark.usefixtures("lease")

SECONDS = 180.0
GROUP = {"model": {"source": "demo://gemma-3-270m"}, "parallel": {"tensor": 2, "pods": 2}}


async def holds(true: Callable[[], bool]) -> bool:
    """Wait in another thread, because the operator runs in this one."""
    return await asyncio.to_thread(until, true, SECONDS)


class Leader:
    """A leader's `/health`; `asked` counts the requests."""

    def __init__(self) -> None:
        self.report: Json = {"status": "loading", "stage": "wait for member 1", "fraction": 0.0}
        self.asked = 0

    async def health(self, request: web.Request) -> web.Response:
        assert "Authorization" not in request.headers
        self.asked += 1
        return web.json_response(self.report, status=200 if self.report["status"] == "ready" else 503)


@asynccontextmanager
async def serving(leader: Leader) -> AsyncIterator[str]:
    """Serve a leader on the port of runtimes; yield its address."""
    app = web.Application()
    app.router.add_get("/health", leader.health)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        for address in loopback_addresses():
            with suppress(OSError):
                await web.TCPSite(runner, address, PORT).start()
                break
        yield address
    finally:
        await runner.cleanup()


def start(direct: Direct, pod: Json, address: str, *, ready: bool) -> None:
    if "nodeName" not in pod["spec"]:
        direct.bind(pod)
    condition = {"type": "Ready", "status": str(ready)}
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
    direct.write_status(pod, status)


def message(direct: Direct) -> str:
    """Return reason and message of Loaded."""
    conditions: list[Any] = (direct.model("m").get("status") or {}).get("conditions") or []
    return next((f"{c['reason']}: {c['message']}" for c in conditions if c["type"] == "Loaded"), "")


async def test_a_group_that_does_not_serve_says_why(server: ApiServer, direct: Direct) -> None:
    leader = Leader()
    direct.create_model("m", GROUP)
    async with serving(leader) as address, running(server, direct.namespace):
        assert await holds(lambda: len(direct.pods("m")) == 1)
        (first,) = direct.pods("m")
        name = first["metadata"]["name"]
        assert leader.asked == 0
        start(direct, first, address, ready=False)
        assert await holds(lambda: message(direct).endswith(f"{name}: wait for member 1")), message(direct)
        assert message(direct).startswith("GroupForming: ")
        assert await holds(lambda: len(direct.pods("m")) == 2)
        pods = sorted(direct.pods("m"), key=lambda pod: str(pod["metadata"]["labels"][INDEX_LABEL]))
        leader.report = {"status": "ready"}
        start(direct, pods[1], "198.18.0.2", ready=True)
        start(direct, pods[0], address, ready=True)
        assert await holds(lambda: message(direct).startswith("Loaded: ")), message(direct)
        asked = leader.asked
        more = await asyncio.to_thread(until, lambda: leader.asked > asked + 1, 5.0)
        assert not more, "a group that serves is not asked, except for a request that was under way"
        words = "rank 1 was killed by signal 9; wait for member 1"
        leader.report = {
            "status": "recovering",
            "reason": "rank 1 was killed by signal 9",
            "stage": "wait for member 1",
        }
        start(direct, pods[0], address, ready=False)
        assert await holds(lambda: message(direct).endswith(f"{name}: {words}")), message(direct)
        assert message(direct).startswith("GroupLost: ")
        (group,) = direct.model("m")["status"]["groups"]
        assert (group["reason"], group["message"]) == ("GroupLost", f"{name}: {words}")
