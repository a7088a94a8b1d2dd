"""The incremental JSON scanner agrees with json on valid and invalid texts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.tools.json_calls import BrokenJson, JsonValue

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
CHARS = '{}[]",:\\/ \n\tu0123456789.-+eEtrufalsn\x01é'


def is_value(text: str) -> bool:
    """Return whether the whole text is one value."""
    value = JsonValue()
    try:
        at = value.take(text, 0)
        value.end()
    except BrokenJson:
        return False
    return value.done and not text[at:].strip(" \t\r\n")


def strictly(text: str) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(deadline=None, max_examples=60)
@given(document=DOCUMENTS, indent=st.sampled_from([None, 1]), ascii_only=st.booleans(), rest=st.sampled_from("}],x "))
def test_documents(document: object, indent: int | None, ascii_only: bool, rest: str) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    assert is_value(text)
    if isinstance(document, dict | list | str):
        value = JsonValue()
        assert value.take(text + rest, 0) == len(text)
        assert value.done
        by_chars = JsonValue()
        for char in text[:-1]:
            assert by_chars.take(char, 0) == 1
            assert not by_chars.done
        by_chars.take(text[-1], 0)
        assert by_chars.done


@settings(deadline=None, max_examples=150)
@given(document=DOCUMENTS, where=st.integers(0, 60), new=st.text(alphabet=CHARS, max_size=2), drop=st.integers(0, 2))
def test_what_is_nearly_json(document: object, where: int, new: str, drop: int) -> None:
    text = json.dumps(document, ensure_ascii=False)
    text = text[:where] + new + text[where + drop :]
    assert is_value(text) == strictly(text)


@settings(deadline=None, max_examples=150)
@given(st.text(alphabet=CHARS, max_size=8))
def test_what_is_hardly_json(text: str) -> None:
    assert is_value(text) == strictly(text)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ('{"a": Oslo}', 6),
        ('{"a" 1}', 5),
        ('{"a": 1,}', 8),
        ("[1, ]", 4),
        ("[01]", 2),
        ('"\n"', 1),
        ('"\\x"', 2),
        ('"\\u00g0"', 5),
        ("nul1", 3),
        ("[1}", 2),
        ("-x", 1),
        ("1.x", 2),
        ("+1", 0),
        ("", None),
    ],
)
def test_where_it_is_broken(text: str, at: int | None) -> None:
    value = JsonValue()
    if at is None:
        assert value.take(text, 0) == 0
        assert not value.done
        return
    with pytest.raises(BrokenJson) as caught:
        value.take(text, 0)
    assert caught.value.at == at


def test_depth_is_no_matter() -> None:
    value = JsonValue()
    assert value.take("[" * 100_000 + "]" * 100_000, 0) == 200_000
    assert value.done
