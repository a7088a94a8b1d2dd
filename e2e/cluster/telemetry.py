"""Programs that read what Plimsoll exports: Jaeger and Zipkin read traces, Prometheus and Alertmanager metrics.

The cluster does not need them, and Jaeger takes some minutes to build, so they are fetched only on request.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.binaries import BUILD, STATIC, Binary, build_missing, module_folder
from cluster.errors import ClusterError
from cluster.files import installing
from cluster.layout import Layout
from cluster.packages import LOCK_SECONDS, wait_for_lists
from cluster.progress import Progress
from cluster.shell import family, run
from cluster.versions import ALERTMANAGER, JAEGER, PROMETHEUS, ZIPKIN

JAEGER_MODULE = "github.com/jaegertracing/jaeger"
VERSION_VARIABLE = f"{JAEGER_MODULE}/internal/version.latestVersion"
ZIPKIN_ARTIFACT = f"io.zipkin:zipkin-server:{ZIPKIN}:jar:exec"
# Debian package -> the version to install, without Debian's own part of it.
DEBIAN_PACKAGES = {"prometheus": PROMETHEUS, "prometheus-alertmanager": ALERTMANAGER}


def _build_jaeger(target: Path, log: Path) -> None:
    """Build Jaeger in its module's folder. Without the build tag `ui` it has its API and no web page."""
    linker = f"-s -w -X {VERSION_VARIABLE}={JAEGER}"
    argv = family("go", "build", *BUILD, "-ldflags", linker, "-o", target, "./cmd/all-in-one")
    run(argv, env=STATIC, cwd=module_folder(JAEGER_MODULE, JAEGER), log=log)


JAEGER_BINARY = Binary("jaeger", JAEGER, _build_jaeger)


def zipkin(layout: Layout) -> Path:
    """Return the path of Zipkin's server in the cache, a jar that Java 17 runs."""
    return layout.binaries / f"zipkin-{ZIPKIN}" / "zipkin.jar"


def package(layout: Layout, name: str) -> Path:
    """Return the folder in the cache into which a package of DEBIAN_PACKAGES is unpacked."""
    return layout.binaries / f"{name}-{DEBIAN_PACKAGES[name]}"


def build_telemetry(layout: Layout, progress: Progress) -> None:
    """Fetch or build the programs that the cache lacks. Raises ClusterError."""
    unpack_packages(layout, progress)
    fetch_zipkin(layout, progress)
    build_missing(layout, progress, (JAEGER_BINARY,))


def unpack_packages(layout: Layout, progress: Progress) -> None:
    """Download the Debian packages, and unpack them into the cache. Nothing is installed on the host."""
    wanted = [name for name in DEBIAN_PACKAGES if not package(layout, name).exists()]
    if not wanted:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(f"this machine has no apt-get, which downloads {' and '.join(wanted)}")
    log = layout.build_logs / "debian-packages.log"
    apt = ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}", "-o", "APT::Sandbox::User=root"]
    with progress.step(f"downloading {' and '.join(wanted)} (log: {log})"):
        wait_for_lists()
        run([*apt, "update"], log=log)
        for name in wanted:
            with installing(package(layout, name)) as root:
                run([*apt, "download", f"{name}={DEBIAN_PACKAGES[name]}*"], cwd=root.parent, log=log)
                (archive,) = root.parent.glob("*.deb")
                run(["dpkg-deb", "--extract", archive, root], log=log)


def fetch_zipkin(layout: Layout, progress: Progress) -> None:
    """Fetch Zipkin's server from the Maven repository that the host's Maven uses."""
    target = zipkin(layout)
    if target.exists():
        return
    if shutil.which("mvn") is None:
        raise ClusterError(f"Maven is not installed, which fetches {ZIPKIN_ARTIFACT}: install the package maven")
    log = layout.build_logs / "zipkin.log"
    with progress.step(f"fetching {ZIPKIN_ARTIFACT} (log: {log})"), installing(target.parent) as folder:
        copy = ("dependency:copy", f"-Dartifact={ZIPKIN_ARTIFACT}", f"-DoutputDirectory={folder}")
        run(["mvn", "--batch-mode", *copy], cwd=Path("/"), log=log)
        (jar,) = folder.glob("*.jar")
        jar.rename(folder / target.name)
