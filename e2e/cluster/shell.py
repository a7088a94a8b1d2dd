"""Runs commands, captures their output, and shows it in the error if they fail."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.errors import ClusterError

TAIL_LINES = 15
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines of an output, indented for an error message."""
    return "\n".join("    " + line for line in text.strip().splitlines()[-lines:])


def family(*argv: str | Path) -> list[str]:
    """Return a command line whose child processes end with it, through its own process namespace. Otherwise builds
    would continue after we are killed.
    """
    return ["unshare", "--pid", "--fork", "--kill-child", "--", *map(str, argv)]


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    orphan: bool = False,
) -> str:
    """Run a command that must succeed, and return its standard output.

    The command ends with this process, even if that is killed, unless it may become an `orphan`. With `log`, its output
    is appended there instead, and "" is returned. Raises ClusterError with the end of the output and the log's name.
    """
    words = [str(word) for word in argv]
    whole = words if orphan else [*DIE_WITH_PARENT, *words]
    full = {**os.environ, **(env or {})}
    try:
        if log is None:
            done = subprocess.run(whole, check=False, input=stdin, env=full, cwd=cwd, capture_output=True, text=True)
        else:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as out:
                done = subprocess.run(
                    whole, check=False, input=stdin, env=full, cwd=cwd, stdout=out, stderr=out, text=True
                )
    except FileNotFoundError as error:
        raise ClusterError(f"{error.filename} is not installed (needed for: {' '.join(words[:4])})") from error
    if done.returncode != 0:
        said = log.read_text() if log else done.stderr or done.stdout
        where = f"\n  the whole log: {log}" if log else ""
        raise ClusterError(f"{' '.join(words)} failed with exit code {done.returncode}:\n{tail(said)}{where}")
    return done.stdout or ""


def succeeds(argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> bool:
    """Return whether a command exits with 0. Its output is discarded."""
    words = [*DIE_WITH_PARENT, *map(str, argv)]
    done = subprocess.run(words, check=False, env={**os.environ, **(env or {})}, capture_output=True)
    return done.returncode == 0
