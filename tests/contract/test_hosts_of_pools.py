"""`plimsoll host` understands the arguments that the operator gives a pool's pods."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from host_support.fake_host import FakeHost

from plimsoll_operator.build.host import HostKey, build_host
from plimsoll_operator.build.image import Image
from plimsoll_operator.spec.identity import CONTAINER, HOST_PORT, ObjectKey
from plimsoll_operator.spec.runtime_pool import read_pool
from plimsoll_operator.status.pod_failure import failure_of
from plimsoll_operator.status.reasons import Reason
from plimsoll_runtime.api.host.config import HostConfig
from plimsoll_runtime.api.host.server import HostServer, make_guard
from plimsoll_runtime.api.server.listener import listen
from plimsoll_runtime.cli.host import host_config, host_settings
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.errors import DeviceLostError
from plimsoll_runtime.utils.process_exit import write_last_words

KEY = HostKey(b"o" * 32)
POOL = ObjectKey("team", "shared")
LEAST: dict[str, Any] = {"resources": {"memory": "4Gi"}}
FULL = {
    "resources": {"memory": "4Gi", "cpu": "2"},
    "memory": {"line": "80%", "sleepers": "1.5Gi"},
    "eviction": {"minimumResidencySeconds": 7},
    "drainSeconds": 90,
}


def container_of(spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": POOL.name, "namespace": POOL.namespace, "uid": "u", "generation": 1}
    pod = build_host(read_pool({"metadata": meta, "spec": spec}), Image("runtime:1"), KEY, "x1")
    (container,) = pod["spec"]["containers"]
    return dict(container)


@pytest.mark.parametrize(
    ("spec", "line", "sleepers", "minimum", "drain"),
    [(LEAST, 0.9, 0, 10.0, 30.0), (FULL, 0.8, 3 * 2**29, 7.0, 90.0)],
)
def test_a_host_understands_what_its_pod_is_given(
    spec: dict[str, Any], line: float, sleepers: int, minimum: float, drain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = container_of(spec)
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    args = build_parser().parse_args(container["args"])
    config, settings = host_config(args), host_settings(args)
    assert (settings.line, settings.sleepers, settings.minimum_residency) == (line, sleepers, minimum)
    assert config.drain_seconds == drain
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.port, "metrics": config.metrics_port, "host": config.host_port}
    assert config.host_port == HOST_PORT
    with socket.create_server(("0.0.0.0", 0)) as listener:
        guard = make_guard(config, listener)
    given = (KEY.token(POOL), KEY.token(ObjectKey("team", "other")), KEY.token_hash(POOL))
    assert [guard.lets_in(f"Bearer {token}") for token in given] == [True, False, False]


async def test_a_pod_whose_host_has_lost_its_device_is_unready_and_says_why_it_ended(tmp_path: Path) -> None:
    """Its probes fail while the host still reports its models, and the operator reads its exit code and termination
    message.
    """
    container = container_of(LEAST)
    listeners = (listen("127.0.0.1", 0), listen("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listeners[0].getsockname()[1]}"
    host = FakeHost(lambda: None)
    server = HostServer(HostConfig(drain_seconds=60), listeners, host)  # type: ignore[arg-type]
    ended = asyncio.create_task(server.run())
    ready, live = (url + container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe"))
    async with httpx.AsyncClient() as http:
        while not (await http.get(ready)).is_success:
            assert not ended.done(), ended
        assert (await http.get(live)).is_success
        server.state.admit()
        host.lose(DeviceLostError("CUDA error: GPU is lost"))
        while (await http.get(ready)).is_success:
            assert not ended.done(), ended
        assert [(await http.get(path)).status_code for path in (ready, live)] == [503, 503]
        server.state.release()
    with pytest.raises(DeviceLostError) as caught:
        await ended
    write_last_words(str(tmp_path / "words"), caught.value)
    how = {"exitCode": caught.value.kind.exit_code, "message": (tmp_path / "words").read_text()}
    status = {"containerStatuses": [{"name": CONTAINER, "restartCount": 1, "lastState": {"terminated": how}}]}
    failure = failure_of(status, {})
    assert failure is not None
    assert failure.reason is Reason.DEVICE_FAILED
    assert failure.message == "device-failed: CUDA error: GPU is lost (1 restart)"
