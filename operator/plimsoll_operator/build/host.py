"""Builds the pod of a host (`plimsoll host`), and derives the token of its API."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plimsoll_operator.build.arguments import device_arguments
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.persistence import group_variable, keeper_label, store_arguments, stores
from plimsoll_operator.build.pod_revision import revision
from plimsoll_operator.build.runtime_pod import Parts, build_runtime_pod
from plimsoll_operator.spec.identity import HOST_PORT, HOSTING, PORT, ObjectKey
from plimsoll_operator.spec.runtime_pool import PoolSpec

FILE = "operator"
LEAST_BYTES = 32


class HostKeyError(Exception):
    """The key cannot be used; the message says why. It never has a part of it."""


@dataclass(frozen=True, slots=True)
class HostKey:
    """The operator's key, which is never shown."""

    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """A name for it: pods that were made with another do not know the tokens of this one."""
        return hashlib.sha256(self.key).hexdigest()[:16]

    def token(self, pool: ObjectKey) -> str:
        """The bearer token for the hosts of a pool, in hex."""
        return self._derived(f"host/{pool}")

    def token_hash(self, pool: ObjectKey) -> str:
        """What the pods of a pool are given: SHA-256 in hex. Nobody gets a token of 256 bits back out of it."""
        return hashlib.sha256(self.token(pool).encode()).hexdigest()

    def mark(self, secret: str) -> str:
        """A name for somebody else's secret, from which nobody learns anything of it."""
        return self._derived(f"mark/{secret}")

    def _derived(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def read_key(folder: Path) -> HostKey:
    """From a mounted Secret. Raises HostKeyError."""
    path = folder / FILE
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise HostKeyError(f"the key {path} cannot be read: {error.strerror}") from error
    if len(key) < LEAST_BYTES:
        raise HostKeyError(f"the key {path} has {len(key)} bytes; it needs {LEAST_BYTES} random ones")
    return HostKey(key)


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
