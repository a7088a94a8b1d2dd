"""The base layer: a small Debian with the Python that the Dockerfiles expect from `python:3.11-slim-bookworm`. Created
by debootstrap from the mirror in the host's apt configuration.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from cluster.debian import find_mirror
from cluster.files import installing
from cluster.layout import Layout
from cluster.packages import program
from cluster.progress import Progress
from cluster.shell import family, run
from cluster.versions import DEBIAN

PACKAGES = ("ca-certificates", "netbase", "python3", "python3-pip", "python3-venv", "tzdata")
# The official image has its Python in /usr/local: create its names, and allow pip to install.
LINKS = {
    "usr/local/bin/python": "/usr/bin/python3",
    "usr/local/bin/python3": "/usr/bin/python3",
    "usr/local/bin/python3.11": "/usr/bin/python3.11",
    "usr/local/bin/pip": "/usr/bin/pip3",
    "usr/local/bin/pip3": "/usr/bin/pip3",
}
USELESS = (
    "usr/lib/python3.11/EXTERNALLY-MANAGED",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)
EMPTY = ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/log")
RECIPE = 1


def recipe_key() -> str:
    """Return a digest of the layer's inputs."""
    recipe = json.dumps([RECIPE, DEBIAN, PACKAGES, LINKS, USELESS, EMPTY])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def base_layer(layout: Layout) -> Path:
    """Return the path of the layer in the cache, where it need not exist yet."""
    return layout.images / f"debian-{DEBIAN}-python-{recipe_key()}.layer.tar"


def build_base_layer(layout: Layout, progress: Progress) -> Path:
    """Build the layer unless it is in the cache, and return its path."""
    target = base_layer(layout)
    if target.exists():
        return target
    log = layout.build_logs / "debootstrap.log"
    with progress.step(f"bootstrapping Debian {DEBIAN} with Python (log: {log})"), installing(target) as scratch:
        root = scratch.with_name("root")
        options = ("--variant=minbase", f"--include={','.join(PACKAGES)}")
        bootstrap = [program("debootstrap"), *options, DEBIAN, str(root), find_mirror(DEBIAN)]
        # debootstrap mounts /proc in the root. In a mount namespace of its own, that mount always ends with it.
        run(family("unshare", "--mount", *bootstrap), log=log)
        trim(root)
        run(["tar", "--numeric-owner", "--sort=name", "-C", root, "-cf", scratch, "."], log=log)
    return target


def trim(root: Path) -> None:
    """Remove files that containers do not need, and add links where the official image has Python and pip."""
    for name in USELESS:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name in EMPTY:
        (root / name).mkdir(parents=True)
    # A mount point for the host's pip settings during builds, which leave no trace in layers.
    (root / "etc" / "pip.conf").touch()
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
