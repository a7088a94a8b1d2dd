"""A forwarded request wakes a sleeping model in a pool's pod, without an operator or a token of the host API."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from gateway_support.tables import table_of
from model_support.tiny import make_model, save_model
from server_support.host import START_SECONDS, running_host

from plimsoll_gateway.admission.limits import Limits
from plimsoll_gateway.app import Gateway
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.discovery.kubernetes_objects import HOSTS, MODELS, PODS
from plimsoll_gateway.discovery.routing_table import TableStore
from plimsoll_gateway.proxy.keepalive_comments import COMMENT
from plimsoll_gateway.routing.pick import Picker

pytestmark = [
    pytest.mark.timeout(900),  # starts a process that imports torch, and an engine more than once
    pytest.mark.skipif(sys.platform != "linux", reason="gives the host a loopback address of its own"),
]

ADDRESS = f"127.{os.getpid() % 250 + 1}.{os.getpid() // 250 % 250 + 1}.7"
"""Pods listen on the same port, so each needs an address."""
TOKEN = "what-the-operator-has-and-the-gateway-does-not"
META = {"namespace": "team", "name": "m", "uid": "u", "resourceVersion": "1", "generation": 1}
DEPLOYMENT: dict[str, Any] = {
    "metadata": META | {"creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"model": {"source": "file:///m"}, "placement": {"pool": "shared"}},
}
POD: dict[str, Any] = {
    "metadata": META | {"name": "shared-x1", "uid": "p"},
    "spec": {"containers": []},
    "status": {"podIP": ADDRESS, "conditions": [{"type": "Ready", "status": "True"}]},
}


@dataclass(frozen=True)
class Hosted:
    """A running `plimsoll host`."""

    url: str

    def entry(self) -> dict[str, Any]:
        """Return its report of the model."""
        answer = httpx.get(f"{self.url}/host/v1/report", headers=self.headers, timeout=60).json()
        (found,) = answer["models"]
        return dict(found)

    def until_asleep(self) -> None:
        """Send the model to sleep, and wait until it is."""
        said = {"operation": f"sleep-{time.monotonic_ns()}", "level": "InHost"}
        url = f"{self.url}/host/v1/models/team/m/sleep"
        while True:
            answer = httpx.post(url, json=said, headers=self.headers, timeout=60)
            assert answer.status_code in (200, 202), answer.text
            if answer.status_code == 200:
                break
            time.sleep(0.2)  # another process cannot set our events
        assert self.entry()["state"] == "InHost"

    @property
    def headers(self) -> dict[str, str]:
        """Headers for its own API."""
        return {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    folder = tmp_path_factory.mktemp("host")
    model, token, manifest, log = (folder / name for name in ("model", "token", "m.yaml", "log"))
    model.mkdir()
    save_model(make_model("LlamaConfig", {}), model)
    token.write_text(TOKEN)
    spec = {"model": {"source": f"file://{model}"}, "runtime": {"kvMemory": "1MiB"}}
    kind = {"apiVersion": "plimsoll.dev/v1alpha1", "kind": "ModelDeployment"}
    manifest.write_text(json.dumps(kind | {"metadata": {"namespace": "team", "name": "m"}, "spec": spec}))
    options = ("--host", ADDRESS, "--models", str(manifest), "--sleepers", "64MiB", "--host-token-file", str(token))
    environment = os.environ | {"PLIMSOLL_CACHE": str(folder / "cache")}
    with running_host(log, *options, environment=environment, address=ADDRESS) as host:
        yield Hosted(host.host_url)


@asynccontextmanager
async def gateway_of(state: str, limits: Limits) -> Any:
    """A client of a gateway whose table says that the pod has the model in this state."""
    pod = {"kind": "Pod", "name": "shared-x1", "uid": "p", "controller": True}
    host = {
        "metadata": META | {"name": "shared-x1", "uid": "h", "ownerReferences": [pod]},
        "status": {"models": [{"namespace": "team", "name": "m", "state": state, "servedNames": ["m"]}]},
    }
    store = TableStore()
    async with Pool() as session:
        gateway = Gateway(session, store, Picker(), limits)
        store.replace(table_of([MODELS.entry(DEPLOYMENT)], [PODS.entry(POD)], [HOSTS.entry(host)]))
        transport = httpx.ASGITransport(app=gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=START_SECONDS) as client:
            yield client


BODY = {"model": "m", "prompt": [3, 4, 5], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


@pytest.mark.long
async def test_requests_wake_a_sleeping_model_once_and_are_answered(hosted: Hosted) -> None:
    async with gateway_of("InHost", Limits()) as client:
        awake = await client.post("/v1/completions", json=BODY)
        assert awake.status_code == 200, awake.text
        await asyncio.to_thread(hosted.until_asleep)
        before = hosted.entry()
        answers = await asyncio.gather(*(client.post("/v1/completions", json=BODY) for _ in range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    texts = {answer.json()["choices"][0]["text"] for answer in answers}
    assert texts == {awake.json()["choices"][0]["text"]}
    after = hosted.entry()
    assert after["state"] == "Resident"
    assert (after["loads"], after["wakes"]) == (before["loads"], before["wakes"] + 1)


@pytest.mark.long
async def test_a_stream_to_a_sleeping_model_is_told_to_wait(hosted: Hosted) -> None:
    async with gateway_of("InHost", Limits(hold_seconds=0.0)) as client:
        await asyncio.to_thread(hosted.until_asleep)
        answer = await client.post("/v1/completions", json=BODY | {"stream": True})
    assert answer.status_code == 200
    assert answer.content.startswith(COMMENT)
    assert answer.content.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in answer.content
    assert hosted.entry()["state"] == "Resident"
