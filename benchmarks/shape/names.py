"""`python -m shape.names`: checks docs/design/names.md, which maps old paths and public names to new ones.

The page has a row for each Python file of the old commit: its path, its new paths, and changed names. A public name
that the row does not list is unchanged, in one of those paths. Missing rows, missing paths, and names in none of them
are printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "design" / "names.md"
OLD, NEW = "b46b5233", "HEAD"
FOLDERS = ("runtime/plimsoll_runtime", "kernels/plimsoll_kernels", "operator")
_CODE = re.compile(r"`([^`]+)`")
_RENAMED = re.compile(r"`(\w+)` -> (?:`(\w+)`|gone)")


@dataclass(frozen=True, slots=True)
class Row:
    """`paths`: new paths of the file's code, none if it is deleted. `names`: old names that changed; None is
    deleted.
    """

    path: str
    paths: tuple[str, ...]
    names: dict[str, str | None]


def main() -> int:
    """Check the page and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", default=OLD, metavar="COMMIT", help="commit with the old names (default %(default)s)")
    parser.add_argument("--new", default=NEW, metavar="COMMIT", help="commit with the new names (default %(default)s)")
    args = parser.parse_args()
    rows = {row.path: row for row in rows_of(PAGE.read_text())}
    complaints = list(complaints_of(rows, args.old, args.new))
    for complaint in complaints:
        print(complaint)
    print(f"{len(rows)} paths, {len(complaints)} complaints")
    return 1 if complaints else 0


def rows_of(page: str) -> Iterator[Row]:
    """Return the rows of the page's tables."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            names = {old: new or None for old, new in _RENAMED.findall(cells[2])}
            yield Row(cells[0].strip("`"), tuple(_CODE.findall(cells[1])), names)


def complaints_of(rows: dict[str, Row], old: str, new: str) -> Iterator[str]:
    """Return missing and wrong entries of the page for two commits."""
    there = set(_files(new, "."))
    for path in _files(old, *FOLDERS):
        row = rows.get(path)
        if row is None:
            yield f"{path}: has no row"
            continue
        yield from (f"{path}: there is no {each}" for each in row.paths if each not in there)
        found = {name for each in row.paths if each in there for name in public_names(new, each)}
        for name in public_names(old, path):
            now = row.names.get(name, name)
            if now is not None and now not in found:
                yield f"{path}: {name} is not there as {now}"


@cache
def public_names(commit: str, path: str) -> frozenset[str]:
    """Return classes, functions and constants of a module whose names do not begin with an underscore."""
    found: set[str] = set()
    for node in ast.parse(_git("show", f"{commit}:{path}")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(name for name in found if not name.startswith("_"))


def _files(commit: str, *folders: str) -> list[str]:
    listed = _git("ls-tree", "-r", "--name-only", commit, "--", *folders).splitlines()
    return [path for path in listed if path.endswith(".py")]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
