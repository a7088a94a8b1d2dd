"""Finds operators of the sources that can be changed one at a time, and changes them."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift},
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
SKIPPED_FUNCTIONS = ("check_integrity", "__repr__", "main")
"""Not mutated: tests call `check_integrity`, and nothing depends on the text of `__repr__` or the exit of `main`."""

SKIPPED_FILES = ("kernel.py", "compile.py")
"""Triton compiles the first; a change of the second asks for compiled kernels that do not exist."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one expression: `before` becomes `after`, in a function of the file `path`. `number`: its index among
    the function's mutable expressions, so that a mutant stays valid when other functions change.
    """

    path: str
    function: str
    number: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Place:
    """An expression of a file, from byte `start` to before byte `end`, and its mutant."""

    start: int
    end: int
    mutant: Mutant


def places(path: str, text: str) -> list[Place]:
    """Return all expressions of a file that can be mutated, in order."""
    return list(_Finder(path, text).found())


def place_of(mutant: Mutant, root: Path) -> tuple[str, Place]:
    """Return the text of the mutant's file, and its place. Raise LookupError if the code there has changed."""
    text = (root / mutant.path).read_text()
    for place in places(mutant.path, text):
        if place.mutant == mutant:
            return text, place
    raise LookupError(f"{mutant.path}: {mutant.function} has changed; draw the list again with --draw")


def replaced(text: str, place: Place, code: str) -> str:
    """Return the text with `code` instead of the expression at a place."""
    data = text.encode()
    return (data[: place.start] + code.encode() + data[place.end :]).decode()


def draw(root: Path, folders: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants, one from each folder in turn; within a folder, each place is equally likely."""
    chooser = random.Random(seed)
    found: list[Mutant] = []
    pools = [_all(root, folder) for folder in folders]
    for number in range(count):
        pool = pools[number % len(pools)]
        found.append(pool.pop(chooser.randrange(len(pool))))
    return found


def _all(root: Path, folder: str) -> list[Mutant]:
    files = sorted(file for file in (root / folder).rglob("*.py") if file.name not in SKIPPED_FILES)
    return [each.mutant for file in files for each in places(str(file.relative_to(root)), file.read_text())]


class _Finder:
    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._tree = ast.parse(text)
        self._lines = [0]
        for line in text.encode().splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def found(self) -> Iterator[Place]:
        yield from self._functions(self._tree, ())

    def _functions(self, node: ast.AST, names: tuple[str, ...]) -> Iterator[Place]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                if child.name not in SKIPPED_FUNCTIONS:
                    yield from self._function(child, ".".join((*names, child.name)))
            elif isinstance(child, ast.ClassDef):
                yield from self._functions(child, (*names, child.name))

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[Place]:
        number = 0
        for statement in function.body:
            for node in _expressions(statement):
                if (changed := _changed(node)) is not None:
                    mutant = Mutant(self._path, name, number, ast.unparse(node), ast.unparse(changed))
                    yield Place(self._at(node.lineno, node.col_offset), self._end(node), mutant)
                    number += 1

    def _end(self, node: ast.expr) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions below a node, without annotations, decorators, f-strings, patterns, and raise and assert
    statements.
    """
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.pattern):
        return
    if isinstance(node, ast.expr):
        yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _expressions(child)


def _changed(node: ast.expr) -> ast.expr | None:
    match node:
        case ast.Compare(left, [operator], right) if type(operator) in COMPARISONS:
            return ast.Compare(left, [COMPARISONS[type(operator)]()], right)
        case ast.BoolOp(ast.And(), values):
            return ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            return ast.BoolOp(ast.And(), values)
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            return ast.BinOp(left, ARITHMETIC[type(operator)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Call(ast.Name(name) as called, arguments, keywords) if name in CALLS:
            return ast.Call(ast.Name(CALLS[called.id]), arguments, keywords)
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value)):
            return ast.Constant(value + 1)
    return None
