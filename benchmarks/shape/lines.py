"""Counts lines of code: neither blank nor comment nor docstring."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_IGNORED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, slots=True)
class Package:
    """The size of a package: Python files, lines of code, lines of its longest file and entries of its largest folder.
    `entries` counts files and folders, without `__init__.py`.
    """

    files: int
    code: int
    longest: int
    entries: int


def measured(root: Path) -> Package:
    """Return the size of all Python files below a folder."""
    files = sorted(root.rglob("*.py"))
    texts = [file.read_text() for file in files]
    folders = {file.parent for file in files}
    return Package(
        files=len(files),
        code=sum(map(code_lines, texts)),
        longest=max(text.count("\n") for text in texts),
        entries=max(len(_entries(folder, folders)) for folder in folders),
    )


def code_lines(text: str) -> int:
    """Return the number of lines with code. A string statement is a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _IGNORED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in _docstrings(ast.parse(text)):
        assert node.end_lineno is not None
        lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def _docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def _entries(folder: Path, folders: set[Path]) -> list[Path]:
    inner = [each for each in folders if each.parent == folder]
    return [*inner, *(file for file in folder.glob("*.py") if file.name != "__init__.py")]
