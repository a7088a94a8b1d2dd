"""Where everything lies: the state of one checkout's cluster, and the cache that all checkouts share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
CACHE_VARIABLE = "PLIMSOLL_CLUSTER_CACHE"


@dataclass(frozen=True)
class Layout:
    """`state` is deleted by `down`; `cache` survives it, and fresh clones use it too."""

    state: Path
    cache: Path

    @property
    def identity(self) -> str:
        """Eight hex digits that tell this checkout's cluster from another's on the same machine."""
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
        """Logs of what fills the cache. Not with the cluster's own: `down` may run during a build."""
        return self.cache / "logs"

    @property
    def binaries(self) -> Path:
        return self.cache / "bin"

    @property
    def images(self) -> Path:
        return self.cache / "images"

    @property
    def registry(self) -> Path:
        """The registry's blobs: in the cache, so that a push after `down` and `up` sends only what changed."""
        return self.cache / "registry"

    @property
    def storage(self) -> Path:
        """Buildah's images and layers."""
        return self.cache / "buildah"


def find_layout(environ: Mapping[str, str], home: Path) -> Layout:
    """The layout of the checkout that this file belongs to."""
    default = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "plimsoll" / "cluster"
    cache = Path(environ.get(CACHE_VARIABLE) or default)
    return Layout(state=SOURCE.parent.parent / ".cluster", cache=cache.absolute())
