"""Patterns of JSON Schema have the meaning of ECMA-262, whatever library enforces them."""

from __future__ import annotations

import json

import pytest
from structured_support.walk import takes

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import check
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.structured.regex_rust import with_patterns
from plimsoll_runtime.structured.schemas.normalise import normalise
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
    (r"^[^]$", "a\n\u2028", ""),
    (r"^[!-/:-@\[-`{-~]$", "<>&~-#\"'/\\]^,@!", "a "),
    (r"^[\0\cA]$", "\u0000\u0001", "0Ac"),
    (r"^\ud83d\ude00$", "😀", "x"),
    (r"^[\u{1F600}-😂]$", "😀😁😂", "😃x"),
    (r"^[\P{L}x]$", "x1", "aé"),
    (r"^\P{L}$", "1 ", "aé"),
    (r"^\p{Lu}$", "AÉ", "aé1"),
    (r"^[{}]$", "{}", "a"),
    (r"^}$", "}", "{"),
    (r"^\e$", "e", "a"),
    (r"^(?<n>a)$", "a", "n"),
    (r"^(?:a|(b))$", "ab", "c"),
    (r"(?i)^[a-c]$", "abcABC", "d"),
    (r"^(?i:k)$", "kK", "l"),
    (r"(^a|b$)", "ab", "c"),
    (r"\Aa\Z", "a", "b"),
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
        "patternProperties": {"^[0-9A-Z_a-z]": {"anyOf": [{"pattern": "[0-9]"}]}},
        "enum": [{"pattern": r"\d"}],
        "pattern": True,
    }


def test_braces_that_count_nothing_mean_themselves(grammars: Grammars, tokenizer: Tokenizer) -> None:
    for pattern, text in ((r"^a{,3}$", "a{,3}"), (r"^{a}$", "{a}"), (r"^a{x$", "a{x")):
        matcher = grammars.matcher(Constraint.json({"type": "string", "pattern": pattern}))
        matcher.take_all(tokenizer.encode(json.dumps(text), add_special_tokens=False))
        assert matcher.error is None, pattern
        assert matcher.inner.is_accepting(), pattern


@pytest.mark.parametrize(
    "pattern",
    [
        r"a(?=b)",
        r"(a)\1",
        r"\bx",
        "[",
        "[]",
        "a^b",
        "a$b",
        "(^a)+",
        "(a",
        "a)",
        "*a",
        "[b-a]",
        "a{3,2}",
        r"\ud83d",
        "[a",
        "[a-",
        "[\\",
        "a\\",
    ],
)
def test_what_cannot_be_enforced_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError, match=r"."):
        check(Constraint.json({"type": "string", "pattern": pattern}))


BEGINNINGS = {
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": (["0", "-1.5", ".5", "+007."], ["", "-", ".", "+.", "1.2.3", "a"]),
    r"^(?=.*[0-9])(?=.*[a-z])[a-z0-9]{2,4}$": (["a1", "1abc"], ["ab", "12", "a", "a1b2c"]),
    r"^(?!ab)[a-c]+$": (["a", "ba", "acb"], ["ab", "abc", "", "d"]),
    r"^(?!a)(?=b|c)\w*$": (["b", "cat"], ["a", "at", "d", ""]),
    r"^(?=a$|bb)[ab]*": (["a", "bb", "bba"], ["ab", "b", ""]),
    r"^(?!)a": ([], ["a", ""]),
}


@pytest.mark.parametrize("pattern", BEGINNINGS)
def test_look_ahead_at_the_beginning(pattern: str) -> None:
    good, bad = BEGINNINGS[pattern]
    found = normalise({"type": "string", "pattern": pattern})
    assert not found.unenforced
    if not good:
        with pytest.raises(ConstraintError, match="no value satisfies it"):
            check(Constraint.json({"type": "string", "pattern": pattern}))
        return
    constraint = Constraint.json({"type": "string", "pattern": pattern})
    assert [text for text in good if not takes(constraint, json.dumps(text))] == []
    assert [text for text in bad if takes(constraint, json.dumps(text))] == []


ELSEWHERE = [r"a(?=b)", r"^a(?!b)", r"^(?!a|b)", r"^(?!.*b)a", r"^(?=\bx)", r"^(?=a(?!b))a", r"(?<=a)b", r"^(?!a)(b)\1"]


@pytest.mark.parametrize("pattern", ELSEWHERE)
def test_look_ahead_elsewhere(pattern: str) -> None:
    found = normalise({"type": "string", "pattern": pattern, "minLength": 1})
    assert found.schema == {"type": "string", "minLength": 1}
    assert [each.pointer for each in found.unenforced] == ["/pattern"]
