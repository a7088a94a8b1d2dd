"""A source tree with its own kernels, run in the project's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from peers import places

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("benchmarks", "operator", "runtime", "kernels")
DEPENDENCIES = ("pyproject.toml", "constraints.txt")


class UnknownCommit(Exception):
    """Git has no such commit."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A source tree. `commit`: the full hash, or `working tree`."""

    root: Path
    commit: str

    @property
    def environment(self) -> dict[str, str]:
        """Return variables with which the interpreter imports this tree's sources before installed ones."""
        return os.environ | {"PYTHONPATH": os.pathsep.join(str(self.root / folder) for folder in SOURCES)}


WORKING_TREE = Tree(ROOT, "working tree")


def tree_of(commit: str) -> Tree:
    """Return the sources of a commit, checked out in the user's cache, with compiled kernels. Raises UnknownCommit."""
    found = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", check=False)
    if not found:
        raise UnknownCommit(f"{commit!r} is no commit of this repository: see git log")
    tree = Tree(places.cache() / "against" / found[:12], found)
    if not tree.root.is_dir():
        _git("worktree", "prune")
        _git("worktree", "add", "--quiet", "--detach", str(tree.root), found)
    compiling = [sys.executable, "-m", "plimsoll_kernels.cpu.compile"]
    subprocess.run(compiling, env=tree.environment, check=True)
    return tree


def other_dependencies(tree: Tree) -> list[str]:
    """Return the files of DEPENDENCIES that differ between a tree's commit and the working tree. Both run with the same
    installed packages.
    """
    return [name for name in DEPENDENCIES if _git("diff", "--name-only", tree.commit, "--", name)]


def _git(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=check)
    return done.stdout.strip()
