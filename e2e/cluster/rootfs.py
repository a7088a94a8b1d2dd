"""The base layer: a small Debian with the Python that the Dockerfiles expect of `python:3.11-slim-bookworm`.

Made by debootstrap from the mirror that the machine's own apt uses.
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
# The official image has its own Python under /usr/local: its names must exist, and pip be free to install.
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
    """Changes when what goes into the layer changes."""
    recipe = json.dumps([RECIPE, DEBIAN, PACKAGES, LINKS, USELESS, EMPTY])
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def base_layer(layout: Layout) -> Path:
    """Where the layer is kept."""
    return layout.images / f"debian-{DEBIAN}-python-{recipe_key()}.layer.tar"


def build_base_layer(layout: Layout, progress: Progress) -> Path:
    """Make the layer unless it is in the cache."""
    target = base_layer(layout)
    if target.exists():
        return target
    log = layout.build_logs / "debootstrap.log"
    with progress.step(f"bootstrapping Debian {DEBIAN} with Python (log: {log})"), installing(target) as scratch:
        root = scratch.with_name("root")
        options = ("--variant=minbase", f"--include={','.join(PACKAGES)}")
        bootstrap = [program("debootstrap"), *options, DEBIAN, str(root), find_mirror(DEBIAN)]
        # It mounts /proc inside the root: a mount namespace of its own takes that back, however it ends.
        run(family("unshare", "--mount", *bootstrap), log=log)
        trim(root)
        run(["tar", "--numeric-owner", "--sort=name", "-C", root, "-cf", scratch, "."], log=log)
    return target


def trim(root: Path) -> None:
    """Remove what a container has no use for, and add the names that the official image has."""
    for name in USELESS:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name in EMPTY:
        (root / name).mkdir(parents=True)
    # A place for the builder to mount the machine's own settings on, without a trace of them in any layer.
    (root / "etc" / "pip.conf").touch()
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
