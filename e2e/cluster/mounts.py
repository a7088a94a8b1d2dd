"""The mounts that a machine sees: everything here is done inside its own mount namespace and ends with it.

Container software writes to fixed places: sockets and network namespaces under /run, address leases and plugin
sockets under /var/lib, links under /var/log. A machine gets its own empty ones, so that two nodes do not meet and
the host's stay clean.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.shell import run

PRIVATE = (Path("/run"), Path("/var/lib"), Path("/var/log"))


def isolate(binds: Mapping[Path, Path], keep: Sequence[Path]) -> None:
    """Give the calling process's mount namespace its own folders.

    `binds`: target -> source. `keep`: folders that stay visible, even where they lie inside a private one.
    """
    run(["mount", "--make-rshared", "/"])
    run(["mount", "-t", "proc", "proc", "/proc"])
    kept = {path: path for path in keep if any(path.is_relative_to(private) for private in PRIVATE)}
    replace(PRIVATE, {**kept, **binds})


def replace(folders: Sequence[Path], binds: Mapping[Path, Path]) -> None:
    """Cover each folder with an empty one in memory, then bind `target -> source`, sources as they were before."""
    opened = {target: os.open(source, os.O_PATH) for target, source in binds.items()}
    for folder in folders:
        run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder])
    for target, source in opened.items():
        target.mkdir(parents=True, exist_ok=True)
        bind(source, target)
        os.close(source)


def bind(source: int, target: Path) -> None:
    """Bind an opened folder. `-c` leaves the link to the kernel: the folder's path may be hidden by now."""
    subprocess.run(["mount", "-c", "--bind", f"/proc/self/fd/{source}", target], pass_fds=[source], check=True)
