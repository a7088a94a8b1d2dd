"""Builds images from Dockerfiles with buildah, and pushes them to the cluster's registry.

Every call of buildah has its own mount namespace and its own folder for mounts, so that an interrupted call leaves
neither mounts nor records of mounts. Layers stay in the cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import disk, packages, pip_settings
from cluster.addresses import REGISTRY_PORT
from cluster.files import write
from cluster.images import python, write_missing
from cluster.layout import Layout
from cluster.locks import exclusive
from cluster.machine import Machine
from cluster.packages import program
from cluster.progress import Progress
from cluster.shell import family, run
from cluster.versions import PYTHON_IMAGE, REGISTRY

CERTIFICATES = Path("/etc/ssl/certs")
BUNDLE = CERTIFICATES / "ca-certificates.crt"
# A short name in a Dockerfile means Docker Hub. Images that exist locally are used without asking it.
REGISTRIES = 'unqualified-search-registries = ["docker.io"]\n'
# Build steps run in a chroot, which needs neither a container engine nor systemd.
ENVIRONMENT = {"BUILDAH_ISOLATION": "chroot", "BUILDAH_FORMAT": "oci"}


@dataclass(frozen=True)
class Buildah:
    """Creates command lines of buildah. `scratch`: a temporary folder for its mounts and configuration."""

    layout: Layout
    scratch: Path

    def argv(self, verb: str, *argv: str | Path) -> list[str]:
        store = ("--root", self.layout.storage, "--runroot", self.scratch / "run", "--storage-driver", "overlay")
        registries = ("--registries-conf", write(self.scratch / "registries.conf", REGISTRIES))
        private = ("unshare", "--mount", "--propagation", "private")
        return family(*private, program("buildah"), *store, *registries, verb, *argv)


@contextmanager
def buildah(layout: Layout) -> Iterator[Buildah]:
    """Yield a Buildah that uses the cache's storage; its `scratch` is removed at the end of the context."""
    layout.storage.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".build-", dir=layout.cache))
    try:
        with exclusive(scratch):  # `sweep` removes folders without a lock
            yield Buildah(layout, scratch)
    finally:
        shutil.rmtree(scratch)


def load_base(layout: Layout, progress: Progress) -> None:
    """Import the base image into buildah, under the name that the Dockerfiles use."""
    base = python(layout, progress)
    archive = base.path(layout)
    mark = layout.storage / f"loaded-{archive.name}"
    if mark.exists() and archive.exists():
        return
    packages.install_missing(progress, layout.build_logs / "apt.log")
    layout.cache.mkdir(parents=True, exist_ok=True)
    with exclusive(layout.cache), buildah(layout) as tool:
        write_missing(layout, progress, [base])
        with progress.step(f"giving buildah {PYTHON_IMAGE}"):
            loaded = run(tool.argv("pull", "--quiet", f"oci-archive:{archive}"), env=ENVIRONMENT).split()[-1]
            run(tool.argv("tag", loaded, PYTHON_IMAGE), env=ENVIRONMENT)
            write(mark, loaded)


def build_image(
    layout: Layout, progress: Progress, tag: str, dockerfile: Path, context: Path, arguments: Sequence[str]
) -> None:
    """Build the image `tag`; unchanged steps come from buildah's cache. `arguments`: KEY=VALUE for --build-arg. Raises
    ClusterError with the end of the log.
    """
    load_base(layout, progress)
    if disk.free(layout.cache) < disk.PLENTY:
        prune(layout, progress)
    log = layout.build_logs / f"image-{tag.replace('/', '-').replace(':', '-')}.log"
    log.unlink(missing_ok=True)
    with progress.step(f"building the image {tag} (log: {log})"), buildah(layout) as tool:
        found = pip_settings.read_settings(os.environ)
        bundle = BUNDLE if BUNDLE.exists() else None
        config = write(tool.scratch / "pip.conf", pip_settings.render(found, bundle))
        volumes = {config: Path("/etc/pip.conf")} | {path: path for path in pip_settings.local_links(found)}
        if bundle:
            volumes[CERTIFICATES] = CERTIFICATES
        mounts = [word for source, target in volumes.items() for word in ("--volume", f"{source}:{target}:ro")]
        values = [word for argument in arguments for word in ("--build-arg", argument)]
        options: list[str | Path] = [
            "--layers",
            "--pull=false",
            *mounts,
            *values,
            "--tag",
            tag,
            "--file",
            dockerfile,
        ]
        run(tool.argv("bud", *options, context), env=ENVIRONMENT, log=log)


def prune(layout: Layout, progress: Progress) -> None:
    """Remove layers that no named image uses: of earlier sources, and of intermediate stages."""
    with progress.step("the disk is short: removing layers of earlier builds"), buildah(layout) as tool:
        run(tool.argv("rmi", "--prune"), env=ENVIRONMENT)


def push_image(layout: Layout, hub: Machine, name: str) -> str:
    """Push a built image, uncompressed, because packing would take longer than the copy on one machine. `name` is the
    name it was built under, with or without the registry. Returns the reference for pods: REGISTRY/NAME:TAG@DIGEST.
    """
    path = name.removeprefix(f"{REGISTRY}/")
    with buildah(layout) as tool:
        digest = tool.scratch / "digest"
        target = f"docker://127.0.0.1:{REGISTRY_PORT}/{path}"
        options: list[str | Path] = [
            "--tls-verify=false",
            "--disable-compression",
            "--quiet",
            "--digestfile",
            digest,
        ]
        run(hub.enter(*tool.argv("push", *options, name, target)), env=ENVIRONMENT)
        return f"{REGISTRY}/{path}@{digest.read_text().strip()}"
