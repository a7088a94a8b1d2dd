"""Links between pages, and mentions of pages in the sources, lead to files and headings that exist."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
FOLDERS = ("docs", "e2e", "charts", "examples")
PAGES = sorted({*REPO.glob("*.md"), *(page for folder in FOLDERS for page in (REPO / folder).rglob("*.md"))})
LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"(?<![\w./])docs/[\w/-]+\.(?:md|json|svg)\b")
TREES = ("runtime", "kernels", "operator", "charts", "crds", "examples", "benchmarks", "e2e", "tests")
SUFFIXES = (".py", ".yaml", ".tpl", ".txt", ".h", ".cpp", ".md")
FOREIGN = {"docs/syntax.md", "docs/overview.md"}
"""Pages of other projects: llguidance, ModelMesh."""
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(found)


def broken(page: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        file = Path(os.path.normpath(page.parent / path)) if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert not list(broken(page, page.read_text(encoding="utf-8")))


def test_pages_that_the_sources_mention_exist() -> None:
    files = [
        REPO / "Makefile",
        *(file for tree in TREES for file in (REPO / tree).rglob("*") if file.suffix in SUFFIXES),
    ]
    mentioned = {(str(file.relative_to(REPO)), path) for file in files for path in MENTION.findall(file.read_text())}
    assert not {(file, path) for file, path in mentioned if path not in FOREIGN and not (REPO / path).exists()}


def test_a_broken_link_is_found() -> None:
    text = "[a](no/such.md) [b](#no-such-heading) [c](https://example.com/d) [e](README.md#documentation)"
    assert list(broken(REPO / "README.md", text)) == ["no/such.md", "#no-such-heading"]
