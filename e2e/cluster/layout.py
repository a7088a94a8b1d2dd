"""Paths of the state of one checkout's cluster, and of the cache that all checkouts share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
CACHE_VARIABLE = "PLIMSOLL_CLUSTER_CACHE"


@dataclass(frozen=True)
class Layout:
    """`down` deletes `state`; `cache` stays, and other checkouts use it too."""

    state: Path
    cache: Path

    @property
    def identity(self) -> str:
        """Eight hex digits that distinguish this checkout's cluster from others on the same host."""
        return hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def machines(self) -> Path:
        return self.state / "machines"

    @property
    def build_logs(self) -> Path:
        """Folder of logs about filling the cache; apart from the cluster's logs, because `down` may run during
        a build.
        """
        return self.cache / "logs"

    @property
    def binaries(self) -> Path:
        return self.cache / "bin"

    @property
    def images(self) -> Path:
        return self.cache / "images"

    @property
    def registry(self) -> Path:
        """Folder of the registry's blobs: in the cache, so that a push after `down` and `up` sends only changes."""
        return self.cache / "registry"

    @property
    def storage(self) -> Path:
        """Folder of buildah's images and layers."""
        return self.cache / "buildah"


def find_layout(environ: Mapping[str, str], home: Path) -> Layout:
    """Return the layout of the checkout that contains this file."""
    default = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "plimsoll" / "cluster"
    cache = Path(environ.get(CACHE_VARIABLE) or default)
    return Layout(state=SOURCE.parent.parent / ".cluster", cache=cache.absolute())
