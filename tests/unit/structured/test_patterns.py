"""Patterns of JSON Schema mean what ECMA-262 says, whatever the library below means by them."""

from __future__ import annotations

import json

import pytest

from plimsoll_runtime.engine.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import check
from plimsoll_runtime.structured.grammars import Grammars
from plimsoll_runtime.structured.patterns import with_patterns
from plimsoll_runtime.text.tokenizer import Tokenizer

CASES: list[tuple[str, str, str]] = [
    (r"^\d+$", "0129", "٣१x"),
    (r"^\D$", "x٣", "3"),
    (r"^\w$", "aZ_9", "éß日-"),
    (r"^\W$", "é -", "a_"),
    (r"^\s$", " \t\n\u000b\f\r\u00a0\u2028\u202f\ufeff", "\u0085\u180ex"),
    (r"^\S$", "é\u0085", " \u3000"),
    (r"^.$", "é\t🙂\u0085", "\n\r\u2028\u2029"),
    (r"^[\d.]$", "3.", "٣,"),
    (r"^[^\d]$", "x٣", "3"),
    (r"^[\D5]$", "x٣5", "4"),
    (r"^[\s\S]$", "é \u2028", ""),
    (r"^[\w-]$", "a-", "é."),
    (r"^[\w-.]$", "a-.", "é+"),
    (r"^[.-\w]$", "a-.", "é+"),
    (r"^[--x]$", "-.ax", ",y"),
    (r"^[+--]$", "+,-", "*."),
    (r"^[a-]$", "a-", "b"),
    (r"^[\u0041-\x43]$", "ABC", "D-"),
    (r"^[!-\/]$", "!/*", "0"),
    (r"^[a[b]$", "a[b", "]c"),
    (r"^[a&&b~~]$", "a&b~", "c"),
    (r"^[\]\\.^]$", "]\\.^", "x"),
    (r"^\.\/\-\u0041$", "", "x"),
    (r"^[\b]$", "\b", "b"),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_characters(grammars: Grammars, tokenizer: Tokenizer, pattern: str, good: str, bad: str) -> None:
    def taken(text: str) -> bool:
        matcher = grammars.matcher(Constraint.json({"type": "string", "pattern": pattern}))
        matcher.take_all(tokenizer.encode(json.dumps(text, ensure_ascii=False), add_special_tokens=False))
        return matcher.error is None and bool(matcher.inner.is_accepting())

    assert [char for char in good if not taken(char)] == []
    assert [char for char in bad if taken(char)] == []


def test_patterns_are_found_where_they_are_patterns() -> None:
    schema = {
        "properties": {"pattern": {"pattern": r"\d", "const": {"pattern": r"\d"}}, "const": {"pattern": r"\d"}},
        "patternProperties": {r"^\w": {"anyOf": [{"pattern": r"\d"}]}},
        "enum": [{"pattern": r"\d"}],
        "pattern": True,
    }
    assert with_patterns(schema) == {
        "properties": {
            "pattern": {"pattern": "[0-9]", "const": {"pattern": r"\d"}},
            "const": {"pattern": "[0-9]"},
        },
        "patternProperties": {"^[A-Za-z0-9_]": {"anyOf": [{"pattern": "[0-9]"}]}},
        "enum": [{"pattern": r"\d"}],
        "pattern": True,
    }


@pytest.mark.parametrize("pattern", [r"a(?=b)", r"(a)\1", r"\bx", "[", "[]", "[^]", "[a", "[a-", "[\\", "a\\"])
def test_what_cannot_be_enforced_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError, match=r"."):
        check(Constraint.json({"type": "string", "pattern": pattern}))
