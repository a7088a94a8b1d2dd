"""Pages name files, packages, classes and functions that exist."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
SOURCES = ("runtime/plimsoll_runtime", "kernels/plimsoll_kernels", "operator")
TREES = (*SOURCES, "tests", "benchmarks", "e2e", "charts", "examples")
PACKAGES = (*SOURCES[:2], "operator/plimsoll_operator", "operator/plimsoll_gateway", "operator/plimsoll_cluster")
NO_PACKAGES = re.compile(r"text/(html|plain)|build/gpu(/site)?")
"""Media types, and folders that `make` fills."""
OLD_NAMES = {REPO / "docs/design" / name for name in ("20261127-ten-changes.md", "names.md")}
"""Names files of the tree before it, and files that are to come."""
PAGES = sorted({REPO / "README.md", *(REPO / "docs").rglob("*.md")} - OLD_NAMES)
QUOTED = re.compile(r"`([^`\n]+)`")
CLASS = re.compile(r"[A-Z]+[a-z]\w*")
CALLED = re.compile(r"([\w.]+)\(.*\)")


@cache
def modules() -> frozenset[str]:
    """The Python files of the repository, relative to it."""
    found = [*REPO.glob("*.py"), *(path for tree in TREES for path in (REPO / tree).rglob("*.py"))]
    return frozenset(str(path.relative_to(REPO)) for path in found)


@cache
def definitions() -> frozenset[str]:
    """Names of classes, functions, variables and fields of all packages."""
    pattern = re.compile(r"^\s*(?:(?:class|(?:async )?def) (\w+)|(\w+)(?:: | = ))", re.MULTILINE)
    texts = [(REPO / module).read_text(encoding="utf-8") for module in modules() if module.startswith(SOURCES)]
    return frozenset(match[1] or match[2] for text in texts for match in pattern.finditer(text))


def spellings(path: str) -> list[str]:
    """`a/{b,c}.py` are two paths."""
    parts = [part.split(",") for part in re.split(r"[{}]", path)]
    return ["".join(each) for each in product(*parts)]


def is_there(path: str) -> bool:
    if path.endswith(".py"):
        return any(f"/{module}".endswith(f"/{path}") for module in modules())
    return any((REPO / package / f"{path}{suffix}").exists() for package in PACKAGES for suffix in ("", ".py"))


def names_a_package(path: str) -> bool:
    """Whether it looks like `engine/kv`: a path that begins with a folder of a package."""
    if not re.fullmatch(r"[a-z]\w*(/\w*)+", path) or NO_PACKAGES.fullmatch(path):
        return False
    return any((REPO / package / path.split("/")[0]).is_dir() for package in PACKAGES)


def wrong_paths(page: str) -> list[str]:
    """The paths of modules and packages in a page that name nothing."""
    wrong = []
    for quoted in QUOTED.findall(page):
        path = quoted.partition(":")[0]
        if re.fullmatch(r"[\w./{},-]+\.py", path) or names_a_package(path):
            wrong += [each for each in spellings(path.rstrip("/")) if not is_there(each)]
    return wrong


def unknown_names(page: str) -> list[str]:
    """The classes and functions in a page that no package defines."""
    unknown = []
    for quoted in QUOTED.findall(page):
        called = CALLED.fullmatch(quoted)
        dotted = (called[1] if called else quoted).split(".")
        if (called or CLASS.match(dotted[0])) and all(name.isidentifier() for name in dotted):
            unknown += [name for name in dotted if name not in definitions()]
    return unknown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_a_page_exist(page: Path) -> None:
    assert not wrong_paths(page.read_text(encoding="utf-8"))


def test_names_in_the_map_exist() -> None:
    assert not unknown_names((REPO / "docs/architecture.md").read_text(encoding="utf-8"))


def test_a_wrong_path_is_found() -> None:
    page = "`engine/outbox.py`, `core.py`, `engine/{core,lifeline}.py`, `models/foreign/`, `engine/kv`, `text/html`."
    assert wrong_paths(page) == ["engine/outbox.py", "engine/lifeline.py", "models/foreign"]


def test_a_wrong_name_is_found() -> None:
    page = "`EngineCore.step`, `FusedDecoder`, `converse`, `plan()`, `rehearse(model)`, `EngineCore.leap`."
    assert unknown_names(page) == ["FusedDecoder", "rehearse", "leap"]
