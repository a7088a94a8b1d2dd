"""The operator's pod of a pool and `plimsoll host`: what the one is given, the other understands."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from plimsoll_operator.build.host import build_host
from plimsoll_operator.build.image import Image
from plimsoll_operator.identity import HOST_PORT, ObjectKey
from plimsoll_operator.pools.host_key import HostKey
from plimsoll_operator.pools.spec import read_pool
from plimsoll_runtime.api.hosting.server import make_guard
from plimsoll_runtime.cli.host import host_config, host_settings
from plimsoll_runtime.cli.main import build_parser

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
    assert {port["containerPort"] for port in container["ports"]} == {config.port, config.host_port}
    assert config.host_port == HOST_PORT
    with socket.create_server(("0.0.0.0", 0)) as listener:
        guard = make_guard(config, listener)
    given = (KEY.token(POOL), KEY.token(ObjectKey("team", "other")), KEY.token_hash(POOL))
    assert [guard.lets_in(f"Bearer {token}") for token in given] == [True, False, False]
