"""Builds the pod of a host (`plimsoll host`), and derives the token of its API."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plimsoll_operator.build.arguments import device_arguments, listen_arguments
from plimsoll_operator.build.image import Image
from plimsoll_operator.build.persistence import group_variable, keeper_label, store_arguments, stores
from plimsoll_operator.build.pod_revision import revision
from plimsoll_operator.build.runtime_pod import Parts, build_runtime_pod
from plimsoll_operator.spec.identity import HOST_PORT, HOSTING, ObjectKey
from plimsoll_operator.spec.runtime_pool import PoolSpec

FILE = "operator"
LEAST_BYTES = 32


class HostKeyError(Exception):
    """The key cannot be used; the message says why, without any part of the key."""


@dataclass(frozen=True, slots=True)
class HostKey:
    """The secret from which the operator derives one API token for the hosts of each pool. It is never logged."""

    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """A hash of the key. Pods that were created with another key reject the tokens of this one."""
        return hashlib.sha256(self.key).hexdigest()[:16]

    def token(self, pool: ObjectKey) -> str:
        """Return the bearer token for the hosts of a pool, in hex."""
        return self._derived(f"host/{pool}")

    def token_hash(self, pool: ObjectKey) -> str:
        """Return the SHA-256 of a pool's token in hex. The pool's pods get only this hash: a token of 256 bits cannot
        be recovered from it.
        """
        return hashlib.sha256(self.token(pool).encode()).hexdigest()

    def mark(self, secret: str) -> str:
        """Return a keyed hash of another secret, to detect changes without storing it."""
        return self._derived(f"mark/{secret}")

    def _derived(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def read_key(folder: Path) -> HostKey:
    """Read the key from a mounted Secret. Raise HostKeyError if it is missing or too short."""
    path = folder / FILE
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise HostKeyError(f"cannot read the key {path}: {error.strerror}") from error
    if len(key) < LEAST_BYTES:
        raise HostKeyError(f"the key {path} has {len(key)} bytes; it needs at least {LEAST_BYTES} random bytes")
    return HostKey(key)


def build_host(spec: PoolSpec, image: Image, key: HostKey, suffix: str, group: str = "0") -> dict[str, Any]:
    """Build the pod of one host. Two pods of one spec, image and key differ only in `suffix` and `group`."""
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
    """Return a host's command line after `plimsoll`."""
    return [
        *("host", *listen_arguments(), "--host-port", str(HOST_PORT)),
        *("--line", spec.line, "--sleepers", spec.sleepers),
        *("--minimum-residency", str(spec.minimum_residency), "--drain-seconds", str(spec.drain_seconds)),
        *store_arguments(spec),
        *device_arguments(spec),
    ]
