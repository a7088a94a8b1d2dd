"""The Go programs: built once from the module proxy, then taken from the cache.

A name in the cache contains the digest of the binary's inputs (version and sources), so that checkouts with different
pins do not share binaries.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import installing
from cluster.layout import SOURCE, Layout
from cluster.progress import Progress
from cluster.shell import family, run
from cluster.versions import CONTOUR, HELM

# -buildvcs=false omits the checkout's commit, so that equal sources give equal binaries.
BUILD = ("-trimpath", "-buildvcs=false")
STATIC = {"CGO_ENABLED": "0"}


@dataclass(frozen=True)
class Binary:
    """A Go program in the cache. `key`: version or digest of its inputs. `build(target, log)` compiles it to `target`
    and appends the compiler's output to `log`.
    """

    name: str
    key: str
    build: Callable[[Path, Path], None]

    def path(self, layout: Layout) -> Path:
        return layout.binaries / f"{self.name}-{self.key}" / self.name


def source_key(folder: Path) -> str:
    """Return twelve hex digits of the digest of a Go module's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def pinned(go_mod: Path, module_name: str) -> str:
    """Return the version of a module that a go.mod requires. Raises ClusterError if it requires none."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module_name)} (v\S+)", go_mod.read_text(), re.MULTILINE)
    if found is None:
        raise ClusterError(f"{go_mod} does not require {module_name}")
    return found[1]


def version_flags(version: str) -> str:
    """Return linker flags for the version that `kubectl version` and the API server report, like in release builds."""
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        ["-s -w", *(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())]
    )


def module(folder: Path, linker_flags: str = "-s -w") -> Callable[[Path, Path], None]:
    """Return a `Binary.build` that builds the main package of one of our own modules."""

    def build(target: Path, log: Path) -> None:
        argv = family("go", "build", *BUILD, "-ldflags", linker_flags, "-o", target, ".")
        run(argv, env=STATIC, cwd=folder, log=log)

    return build


def released(package: str, version: str) -> Callable[[Path, Path], None]:
    """Return a `Binary.build` that builds a package of a released module with the versions pinned in its go.mod."""

    def build(target: Path, log: Path) -> None:
        env = {**STATIC, "GOBIN": str(target.parent)}
        run(family("go", "install", *BUILD, "-ldflags", "-s -w", f"{package}@{version}"), env=env, log=log)

    return build


KUBERNETES = pinned(SOURCE / "kube" / "go.mod", "k8s.io/kubernetes")
KUBE = Binary("kube", f"{KUBERNETES}-{source_key(SOURCE / 'kube')}", module(SOURCE / "kube", version_flags(KUBERNETES)))
PAUSE_BINARY = Binary("pause", source_key(SOURCE / "pause"), module(SOURCE / "pause"))
HELM_BINARY = Binary("helm", HELM, released("helm.sh/helm/v3/cmd/helm", HELM))
COREDNS_BINARY = Binary("coredns", source_key(SOURCE / "dns"), module(SOURCE / "dns"))
CONTOUR_BINARY = Binary("contour", CONTOUR, released("github.com/projectcontour/contour/cmd/contour", CONTOUR))
ALL = (PAUSE_BINARY, KUBE, COREDNS_BINARY, CONTOUR_BINARY, HELM_BINARY)


def build_missing(layout: Layout, progress: Progress, needed: Sequence[Binary] = ALL) -> None:
    """Build the programs that the cache lacks, one after another, because each build uses all processors."""
    wanted = [binary for binary in needed if not binary.path(layout).exists()]
    if wanted and shutil.which("go") is None:
        names = ", ".join(binary.name for binary in wanted)
        raise ClusterError(
            f"go is not installed, and {names} must be built: install Go (https://go.dev/dl) and try again"
        )
    for binary in wanted:
        log = layout.build_logs / f"build-{binary.name}.log"
        with (
            progress.step(f"building {binary.name} {binary.key} (log: {log})"),
            installing(binary.path(layout)) as target,
        ):
            binary.build(target, log)
    link_tools(layout)


def tools(layout: Layout) -> Path:
    """Return the folder with `kubectl` and `helm` under their usual names, for PATH."""
    return layout.binaries / f"tools-{KUBE.key}-{HELM_BINARY.key}"


def link_tools(layout: Layout) -> None:
    """Create the folder `tools(layout)` with links to kubectl and helm, unless it exists."""
    folder = tools(layout)
    if folder.exists():
        return
    with installing(folder) as scratch:
        scratch.mkdir()
        for name, binary in (("kubectl", KUBE), ("helm", HELM_BINARY)):
            (scratch / name).symlink_to(os.path.relpath(binary.path(layout), folder))


def module_folder(module_name: str, version: str) -> Path:
    """Download a module from the module proxy, and return the folder in which Go has unpacked it."""
    listed = json.loads(run(["go", "mod", "download", "-json", f"{module_name}@{version}"], cwd=Path("/")))
    return Path(listed["Dir"])


def contour_manifest(layout: Layout) -> Path:
    """Return the path of Contour's manifest, copied from its Go module into the cache without the GatewayClass and
    Gateway.

    The manifest contains the CRDs of the Gateway API. manifests/gateway.yaml has our own Gateway, which is applied
    after these CRDs are established.
    """
    target = layout.cache / "manifests" / f"contour-gateway-{CONTOUR}.yaml"
    if not target.exists():
        folder = module_folder("github.com/projectcontour/contour", CONTOUR) / "examples" / "render"
        with installing(target) as scratch:
            scratch.write_text(without_gateways((folder / "contour-gateway.yaml").read_text()))
    return target


def without_gateways(manifest: str) -> str:
    """Return the manifest without objects of the kinds GatewayClass and Gateway."""
    documents = re.split("^---\n", manifest, flags=re.MULTILINE)
    return "---\n".join(each for each in documents if not re.search("^kind: Gateway(Class)?$", each, re.MULTILINE))
