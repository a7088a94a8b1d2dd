"""`python -m shape.moves PLAN.tsv ROOT [NEW.tsv]`: carry out a plan that moves and merges Python files.

PLAN has a line `old path<TAB>new path<TAB>why` for each Python file below ROOT. Several old paths with one new path are
merged: the first file's docstring survives, and a file that another one imports comes before it. NEW lists files
without an old form: `path<TAB>docstring`. Imports, dotted names in strings and paths in texts are rewritten everywhere.
Warnings name places to look at; run `ruff check --fix`, `ruff format` and mypy afterwards.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

TEXTS = {".md", ".toml", ".yaml", ".yml", ".mjs", ".tpl"}
NodeT = TypeVar("NodeT", bound=ast.stmt)
LEFT_ALONE = ("docs/design/20261127-names/", "CHANGELOG.md")


class Names:
    """Old and new names: of modules, with dots, and of files, with slashes.

    Unchanged modules are among them, so that a moved package does not take along a child that stays.
    """

    def __init__(self, plan: Mapping[str, str]) -> None:
        self.modules = {module_of(old): module_of(new) for old, new in plan.items()}
        self._paths = {old: new for old, new in plan.items() if old != new}
        self._dotted = re.compile(rf"(?<![\w./-])(?:{_any_of(self.modules)})(?!\w)")
        self._slashed = re.compile(rf"(?<!\w)(?:{_any_of(self._paths)})(?!\w)")

    def in_text(self, text: str) -> str:
        """A text with the new names."""
        text = self._dotted.sub(lambda found: self.modules[found[0]], text)
        return self._slashed.sub(lambda found: self._paths[found[0]], text) if self._paths else text

    def in_python(self, text: str, file: str) -> str:
        """A Python file with the new names. `from package import module` may get another last name; uses follow."""
        tree, data = ast.parse(text), text.encode()
        at = _Offsets(text)
        edits, renamed = self._imports(tree, at)
        edits += _uses(tree, renamed, at, edits, file)
        pieces, position = [], 0
        for start, end, new in sorted(edits):
            pieces += [self.in_text(data[position:start].decode()), new]
            position = end
        return "".join([*pieces, self.in_text(data[position:].decode())])

    def _imports(self, tree: ast.Module, at: _Offsets) -> tuple[list[_Edit], dict[str, str]]:
        edits: list[_Edit] = []
        renamed: dict[str, str] = {}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
                continue
            members: dict[str, list[str]] = defaultdict(list)
            for alias in node.names:
                suffix = f" as {alias.asname}" if alias.asname else ""
                module = self.modules.get(f"{node.module}.{alias.name}")
                if module is None:
                    members[self.modules.get(node.module, node.module)].append(alias.name + suffix)
                    continue
                parent, _, name = module.rpartition(".")
                members[parent].append(name + suffix)
                if not suffix and name != alias.name:
                    renamed[alias.name] = name
            if [*members] == [node.module] and members[node.module] == [ast.unparse(alias) for alias in node.names]:
                continue
            indent = " " * node.col_offset
            statements = [_import(parent, names) for parent, names in members.items()]
            edits.append((*at.span(node), f"\n{indent}".join(statements)))
        return edits, renamed


_Edit = tuple[int, int, str]
"""First byte, end, and the new text between them."""


class _Offsets:
    """Byte positions of a text's nodes."""

    def __init__(self, text: str) -> None:
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line.encode()))

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset


@dataclass(frozen=True, slots=True)
class _Parts:
    """A module in parts: docstring, import statements (with blocks for type checking), the rest, and the whole tree."""

    doc: str
    imports: list[str]
    body: str
    tree: ast.Module


def merged(texts: Mapping[str, str], new: str, needs: Mapping[str, set[str]]) -> str:
    """The text of the module that replaces `texts`, by old path; these have the new names already.

    `needs`: the old paths that each old path imports. Warns of names that two of the files define differently.
    """
    parts = {old: _parts(text) for old, text in texts.items()}
    _warn_of_clashes(parts, new)
    imports = list(dict.fromkeys(statement for each in parts.values() for statement in each.imports))
    kept = [statement for statement in imports if not _is_of_itself(statement, module_of(new), new)]
    future = [statement for statement in kept if statement.startswith("from __future__")]
    others = [statement for statement in kept if not statement.startswith("from __future__")]
    bodies = [parts[old].body for old in _in_order(list(texts), needs)]
    pieces = [next(iter(parts.values())).doc, *future[:1], "".join(_with_one_block_for_types(others)), *bodies]
    return "\n\n".join(piece.strip("\n") for piece in pieces if piece.strip()) + "\n"


def module_of(path: str) -> str:
    """The module's name of a path."""
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def carry_out(plan: Mapping[str, str], root: Path, added: Mapping[str, str]) -> None:
    """Move and merge the files of `plan` (old path to new path below `root`), and add files with only a docstring.

    The working directory is the repository, whose other files are rewritten to the new names.
    """
    names = Names(plan)
    before = {old: (root / old).read_text() for old in plan}
    needs = {old: set(_needs(text, {module_of(each): each for each in plan})) for old, text in before.items()}
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for old, new in plan.items():
        groups[new][old] = names.in_python(before[old], old)
    after = {
        new: next(iter(olds.values())) if len(olds) == 1 else merged(olds, new, needs) for new, olds in groups.items()
    }
    after |= {path: f'"""{doc}."""\n' for path, doc in added.items()}
    for file in _tracked():
        if not (file.is_relative_to(root) and str(file.relative_to(root)) in plan):
            _rewrite(file, names)
    for old in plan.keys() - after.keys():
        (root / old).unlink()
    for new, text in after.items():
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        (root / new).write_text(text)


def _rewrite(file: Path, names: Names) -> None:
    if file.suffix not in {".py", *TEXTS} and not file.name.startswith(("Dockerfile", "Makefile")):
        return
    before = file.read_text()
    after = names.in_python(before, str(file)) if file.suffix == ".py" else names.in_text(before)
    if after != before:
        file.write_text(after)


def _tracked() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        file = Path(name)
        if not name.startswith(LEFT_ALONE) and file.is_file() and not file.is_symlink():
            yield file


def _any_of(names: Mapping[str, str]) -> str:
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))


def _import(module: str, names: Sequence[str]) -> str:
    return f"from {module} import ({', '.join(names)})"


def _uses(tree: ast.Module, renamed: Mapping[str, str], at: _Offsets, edits: Sequence[_Edit], file: str) -> list[_Edit]:
    found: list[_Edit] = []
    bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for old, new in renamed.items():
        if new in bound:
            _warn(f"{file}: {old} becomes {new}, which is another name's already")
    local = [
        (name, at.span(function))
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for name in _bound_in(function) & renamed.keys()
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in renamed:
            start, end = at.span(node)
            if any(name == node.id and first <= start < last for name, (first, last) in local):
                continue
            if isinstance(node.ctx, ast.Store):
                _warn(f"{file}:{node.lineno}: {node.id} is a module and a variable")
            elif not any(first <= start < last for first, last, _ in edits):
                found.append((start, end, renamed[node.id]))
    return found


def _bound_in(function: ast.AST) -> set[str]:
    """Names of a function's parameters and variables."""
    bound = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    return bound | {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _parts(text: str) -> _Parts:
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    doc, imports, apart = "", list[str](), set[int]()
    for number, node in enumerate(tree.body):
        assert node.end_lineno is not None
        own = "".join(lines[node.lineno - 1 : node.end_lineno])
        if number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            doc = own
        elif isinstance(node, (ast.Import, ast.ImportFrom)) or _is_for_types(node):
            imports.append(own)
        else:
            continue
        apart.update(range(node.lineno - 1, node.end_lineno))
    body = "".join(line for number, line in enumerate(lines) if number not in apart)
    return _Parts(doc, imports, body.strip("\n"), tree)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _with_one_block_for_types(imports: Sequence[str]) -> list[str]:
    blocks = [each for each in imports if _is_for_types(ast.parse(each).body[0])]
    own = [ast.unparse(node) for block in blocks for node in _first(block, ast.If).body]
    others = [each for each in imports if each not in blocks]
    return [*others, *(["if TYPE_CHECKING:\n", *(f"    {each}\n" for each in dict.fromkeys(own))] if own else [])]


def _first(text: str, kind: type[NodeT]) -> NodeT:
    node = ast.parse(text).body[0]
    assert isinstance(node, kind)
    return node


def _is_of_itself(statement: str, module: str, file: str) -> bool:
    """Whether a merged module would import itself."""
    node = ast.parse(statement).body[0]
    if not isinstance(node, ast.ImportFrom):
        return False
    parent, _, name = module.rpartition(".")
    if node.module == parent and any(alias.name == name for alias in node.names):
        _warn(f"{file}: it imports itself, as {name}")
    if node.module == module and any(alias.asname for alias in node.names):
        _warn(f"{file}: it imports a name of its own as another")
    return node.module == module


def _in_order(olds: Sequence[str], needs: Mapping[str, set[str]]) -> list[str]:
    order: list[str] = []

    def place(old: str, trail: tuple[str, ...]) -> None:
        if old in order or old in trail:
            return
        for other in olds:
            if other in needs[old]:
                place(other, (*trail, old))
        order.append(old)

    for old in olds:
        place(old, ())
    return order


def _needs(text: str, paths: Mapping[str, str]) -> Iterator[str]:
    """Paths of the modules that a module imports when it is imported."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found = paths.get(f"{node.module}.{alias.name}") or paths.get(node.module)
                if found is not None:
                    yield found


def _warn_of_clashes(parts: Mapping[str, _Parts], new: str) -> None:
    first: dict[str, tuple[str, str]] = {}
    for old, each in parts.items():
        for name, source in _defined(each.tree):
            where, other = first.setdefault(name, (old, source))
            if other != source:
                _warn(f"{new}: {name} is defined in {where} and in {old}")


def _defined(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, ast.unparse(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, ast.unparse(node)


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _rows(file: Path) -> dict[str, str]:
    rows = (line.split("\t") for line in file.read_text().splitlines() if line)
    return {row[0]: row[1] for row in rows}


def main() -> int:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path, metavar="PLAN.tsv")
    parser.add_argument("root", type=Path, metavar="ROOT")
    parser.add_argument("new", type=Path, metavar="NEW.tsv", nargs="?")
    args = parser.parse_args()
    carry_out(_rows(args.plan), args.root, {} if args.new is None else _rows(args.new))
    return 0


if __name__ == "__main__":
    sys.exit(main())
