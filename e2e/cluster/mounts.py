"""The mounts of a machine, which exist only in its own mount namespace.

Container software writes to fixed paths: sockets and network namespaces in /run, address leases and plugin sockets in
/var/lib, links in /var/log. A machine has its own empty ones, so that nodes do not conflict and the host is not
changed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.shell import run

PRIVATE = (Path("/run"), Path("/var/lib"), Path("/var/log"))


def isolate(binds: Mapping[Path, Path], keep: Sequence[Path]) -> None:
    """Give the calling process's mount namespace private folders. `binds`: target -> source. `keep`: folders that stay
    visible, even inside a private one.
    """
    run(["mount", "--make-rshared", "/"])
    run(["mount", "-t", "proc", "proc", "/proc"])
    kept = {path: path for path in keep if any(path.is_relative_to(private) for private in PRIVATE)}
    replace(PRIVATE, {**kept, **binds})


def replace(folders: Sequence[Path], binds: Mapping[Path, Path]) -> None:
    """Cover each folder with an empty one in memory, then bind-mount `binds` (target -> source). The sources are opened
    first, since they may be in a covered folder.
    """
    opened = {target: os.open(source, os.O_PATH) for target, source in binds.items()}
    for folder in folders:
        run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", folder])
    for target, source in opened.items():
        target.mkdir(parents=True, exist_ok=True)
        bind(source, target)
        os.close(source)


def bind(source: int, target: Path) -> None:
    """Bind-mount the folder of an open descriptor. With `-c`, mount does not resolve its path, which may be covered."""
    subprocess.run(["mount", "-c", "--bind", f"/proc/self/fd/{source}", target], pass_fds=[source], check=True)
