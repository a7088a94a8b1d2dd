"""The words of a leader: what its `/health` says, on one line; anything else is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_operator.status.leader_words import LIMIT, WORDS_LIMIT, BadHealthError, read_words


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"status": "loading", "stage": "wait for member 1", "fraction": 0.5}, "wait for member 1"),
        ({"status": "loading", "stage": "load weights", "fraction": 0.479, "bytes": {"done": 1}}, "load weights 40%"),
        ({"status": "loading", "stage": "start the engine", "fraction": 0}, "start the engine"),
        (
            {"status": "recovering", "reason": "rank 3 was killed by signal 9", "stage": "warm-up"},
            "rank 3 was killed by signal 9; warm-up",
        ),
        ({"status": "recovering"}, ""),
        ({"status": "failed", "reason": "device"}, "failed; device"),
        ({"status": "ready"}, ""),
        ({"status": "x", "stage": "  a\nb\r\n\tc  "}, "a b c"),
        ({"status": "x", "stage": "red \x1b[31m \u202e end \x00"}, "red ?[31m ? end ?"),
    ],
)
def test_words(report: object, words: str) -> None:
    assert read_words(json.dumps(report).encode()) == words


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"ok\n",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"loading"',
        b"{}",
        b'{"status": 1}',
        b'{"status": "loading", "stage": null}',
        b'{"status": "loading", "stage": ["a"]}',
        b'{"status": "loading", "fraction": "0.5"}',
        b'{"status": "loading", "fraction": NaN}',
        b'{"status": "loading", "fraction": 1e999}',
        b'{"status": "loading", "fraction": -1}',
        b'{"status": "loading", "fraction": 7}',
        b'{"status": "x", "more": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"status": "' + b"x" * LIMIT + b'"}',
    ],
)
def test_other_answers_are_refused_in_few_words(body: bytes) -> None:
    with pytest.raises(BadHealthError) as caught:
        read_words(body)
    assert 0 < len(str(caught.value)) <= WORDS_LIMIT
    assert str(caught.value).isprintable()


@given(st.text(), st.text(), st.floats(0, 1))
def test_words_are_printable_and_short(reason: str, stage: str, fraction: float) -> None:
    report = {"status": "loading", "reason": reason * 40, "stage": stage * 40, "fraction": fraction}
    try:
        words = read_words(json.dumps(report).encode())
    except BadHealthError:  # Half of a surrogate pair.
        return
    assert words.isprintable()
    assert len(words) <= WORDS_LIMIT
