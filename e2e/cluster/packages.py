"""Debian packages that the cluster needs on the host, and their installation."""

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
# Program or file -> the package that contains it.
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
# Package installations call this script, which denies all service starts: the cluster starts its own services.
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# Plimsoll's test cluster is installing packages; their services stay off.\nexit 101\n"
LISTS = Path("/var/lib/apt/lists/lock")


def find(name: str) -> str | None:
    """Return the path of a program or file, or None. The administrators' folders are searched even if PATH
    lacks them.
    """
    if name.startswith("/"):
        return name if Path(name).exists() else None
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")


def program(name: str) -> str:
    """Return the absolute path of a program. Raises ClusterError if it is not installed."""
    found = find(name)
    if found is None:
        raise ClusterError(f"{name} is not installed: `python3 e2e/cluster up` as root installs it")
    return found


def missing() -> list[str]:
    """Return packages whose programs are missing."""
    return [package for name, package in NEEDED.items() if find(name) is None]


def install_missing(progress: Progress, log: Path) -> None:
    """Install missing packages with apt-get. Raises ClusterError if that fails."""
    wanted = missing()
    if not wanted:
        return
    if find("apt-get") is None:
        raise ClusterError(
            f"this machine has no apt-get; install the equivalents of these Debian packages: {' '.join(wanted)}"
        )
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-y", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}"]
    with progress.step(f"installing {' '.join(wanted)} (log: {log})"), services_stay_off():
        wait_for_lists()
        # May outlive this process: a half-installed package is worse than an orphan.
        run([*apt, "update"], env=quiet, log=log, orphan=True)
        run([*apt, "install", "--no-install-recommends", *wanted], env=quiet, log=log, orphan=True)


def wait_for_lists() -> None:
    """Wait until no other process updates the package lists. apt-get itself waits for its other locks, but not for this
    one.
    """
    LISTS.parent.mkdir(parents=True, exist_ok=True)
    with LISTS.open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)


@contextmanager
def services_stay_off() -> Iterator[None]:
    """Within the context, let packages that are installed start no services, unless the host has a policy-rc.d."""
    if not POLICY.exists():
        POLICY.write_text(POLICY_TEXT)
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        remove_policy()


def remove_policy() -> None:
    """Remove the policy-rc.d of `services_stay_off`, also one left by an interrupted run. The host's own one stays."""
    if POLICY.exists() and POLICY.read_text() == POLICY_TEXT:
        POLICY.unlink()
