from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.manifest.manifest import read_documents


def read(text: str) -> list[tuple[str, object]]:
    return [(document.origin, dict(document.body)) for document in read_documents(["-"], io.StringIO(text))]


def test_several_documents_of_several_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("a: 1\n---\n\n---\nb: 2\n")
    second.write_text("c: 3\n")
    documents = read_documents([str(first), "-", str(second)], io.StringIO("d: 4"))
    assert [dict(document.body) for document in documents] == [{"a": 1}, {"b": 2}, {"d": 4}, {"c": 3}]
    assert [document.origin for document in documents] == [
        f"{first} (document 1)",
        f"{first} (document 2)",
        "standard input",
        str(second),
    ]


def test_values_are_those_of_json() -> None:
    text = "{date: 2026-01-01, time: 12:30, sixty: 1:30.5, yes: no, 1: one, 2.5: x, n: ~, m: {<<: {k: v}}"
    ((_, body),) = read(text + f", big: {2**64}}}")
    assert body == {
        "date": "2026-01-01",
        "time": "12:30",
        "sixty": "1:30.5",
        "true": False,
        "1": "one",
        "2.5": "x",
        "big": 2.0**64,
        "n": None,
        "m": {"k": "v"},
    }


@pytest.fixture
def plain_recursion_limit() -> Iterator[None]:
    """Python's default limit, whatever earlier tests have set."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no object found"),
        ("# nothing\n---\n", "no object found"),
        ("a: 1\nb: 2\na: 3\n", r'key "a" already set in map\n  in "standard input", line 3'),
        ("a: [1", "error converting YAML to JSON"),
        ("- a\n", "expected an object with apiVersion and kind"),
        ("just text", "expected an object"),
        ("a: .inf", "cannot be written as JSON"),
        ("a: !!binary aGk=", "cannot be written as JSON"),
        ("a: !!set {x}", "cannot be written as JSON"),
        ("a: !python/object:os.system {}", "could not determine a constructor"),
        ("[a]: 1", "a key must be a string"),
        ("a: *nowhere", "undefined alias"),
        ("a: \x00", "not allowed"),
        ("a: " + "[" * 1000, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, what: str, plain_recursion_limit: None) -> None:
    with pytest.raises(UsageError, match=what) as refused:
        read(text)
    assert str(refused.value).startswith(("standard input: ", "-: "))


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        read_documents([str(tmp_path / "none.yaml")], io.StringIO())
    with pytest.raises(UsageError, match="Is a directory"):
        read_documents([str(tmp_path)], io.StringIO())
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_documents([str(tmp_path / "latin.yaml")], io.StringIO())
