"""A pod of a pool: `plimsoll host`, which has many models."""

from __future__ import annotations

from typing import Any

from plimsoll_operator.build.arguments import device_arguments
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.keeping import group_variable, keeper_label, store_arguments, stores
from plimsoll_operator.build.revision import revision
from plimsoll_operator.build.runtime_pod import Parts, build_runtime_pod
from plimsoll_operator.identity import HOST_PORT, HOSTING, PORT
from plimsoll_operator.pools.host_key import HostKey
from plimsoll_operator.pools.spec import PoolSpec


def build_host(spec: PoolSpec, image: Image, key: HostKey, suffix: str, group: str = "0") -> dict[str, Any]:
    """One pod. Two of one spec, image and key differ in `suffix` and `group` only."""
    parts = Parts(
        role=HOSTING,
        group=group,
        revision=revision(spec, image, key.fingerprint),
        arguments=host_arguments(spec),
        environment={"PLIMSOLL_HOST_TOKENS": key.token_hash(spec.key)} | group_variable(spec),
        ports={"host": HOST_PORT},
        claims=spec.claims,
        stores=stores(spec),
        labels=keeper_label(spec, group),
    )
    return build_runtime_pod(spec, image, suffix, parts)


def host_arguments(spec: PoolSpec) -> list[str]:
    """What follows `plimsoll`."""
    return [
        *("host", "--host", "0.0.0.0", "--port", str(PORT), "--host-port", str(HOST_PORT)),
        *("--line", spec.line, "--sleepers", spec.sleepers),
        *("--minimum-residency", str(spec.minimum_residency), "--drain-seconds", str(spec.drain_seconds)),
        *store_arguments(spec),
        *device_arguments(spec),
    ]
