"""Debian packages that the cluster needs, and installing the missing ones."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ClusterError
from cluster.progress import Progress
from cluster.shell import run

CNI_PLUGINS = Path("/usr/lib/cni")
# What must be there -> the package that brings it.
NEEDED = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    str(CNI_PLUGINS / "ptp"): "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "docker-registry": "docker-registry",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "gpgv": "gpgv",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
}
LOCK_SECONDS = 300
# Packages ask this script whether they may start their services. They may not: the cluster starts its own.
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# Plimsoll's test cluster is installing packages; their services stay off.\nexit 101\n"
LISTS = Path("/var/lib/apt/lists/lock")


def find(name: str) -> str | None:
    """Where a program or a file is. Administrators' folders count even where PATH lacks them."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")


def program(name: str) -> str:
    """Absolute path of a program. Raises ClusterError where it is not installed."""
    found = find(name)
    if found is None:
        raise ClusterError(f"{name} is not installed: `python3 e2e/cluster up` as root installs it")
    return found


def missing() -> list[str]:
    """Packages whose programs are not there."""
    return [package for name, package in NEEDED.items() if find(name) is None]


def install_missing(progress: Progress, log: Path) -> None:
    """Install what is missing with apt-get. Raises ClusterError where that cannot be done."""
    wanted = missing()
    if not wanted:
        return
    if find("apt-get") is None:
        raise ClusterError(f"this machine has no apt-get; install what holds these Debian packages: {' '.join(wanted)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-y", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}"]
    with progress.step(f"installing {' '.join(wanted)} (log: {log})"), services_stay_off():
        wait_for_lists()
        # Orphans if need be: a package that is killed half installed is worse than one that nobody waits for.
        run([*apt, "update"], env=quiet, log=log, orphan=True)
        run([*apt, "install", "--no-install-recommends", *wanted], env=quiet, log=log, orphan=True)


def wait_for_lists() -> None:
    """Wait until nobody else updates the package lists: apt-get waits for its other locks, but not for this."""
    LISTS.parent.mkdir(parents=True, exist_ok=True)
    with LISTS.open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)


@contextmanager
def services_stay_off() -> Iterator[None]:
    """Refuse every service start while packages are installed, unless the machine has a policy of its own."""
    if not POLICY.exists():
        POLICY.write_text(POLICY_TEXT)
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        remove_policy()


def remove_policy() -> None:
    """Take our policy away again (one that an interrupted run left, too); the machine's own stays."""
    if POLICY.exists() and POLICY.read_text() == POLICY_TEXT:
        POLICY.unlink()
