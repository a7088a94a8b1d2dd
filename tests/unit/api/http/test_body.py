"""Bodies that are not JSON or not a valid request are refused with short messages."""

import json
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.api.endpoints.tokenize import DetokenizeRequest
from plimsoll_runtime.api.http import body
from plimsoll_runtime.api.http.body import MAX_VALUES, parse, read_head
from plimsoll_runtime.api.http.concurrency import LONG_BODY
from plimsoll_runtime.api.http.errors import ApiError
from plimsoll_runtime.api.schemas.completions import CompletionRequest


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"model": "fake", "prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"model": "fake", "prompt": "a", "temperature": 1e999}', "temperature"),
        (b'{"model": "fake", "prompt": "\\ud800"}', "not valid JSON"),
        (b'{"model": "fake", "prompt": "\xff\xfe"}', "not valid JSON"),
        (b'{"model": "fake", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON"),
        (b'{"model": "fake", "prompt": "a", "seed": ' + b"9" * 10_000 + b"}", "number out of range"),
        (b'{"model": "fake", "prompt": "a", "structured_outputs": {"' + b"x" * 1000 + b'": 1}}', "Unknown parameter"),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{len(value)} bytes {value[:20]!r}",
)
def test_bodies_that_are_no_json_are_refused(content: bytes, told: str) -> None:
    with pytest.raises(ApiError, match=told) as refused:
        parse(content, CompletionRequest)
    assert refused.value.status == 400
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("size", [10, LONG_BODY + 1])
def test_a_model_that_is_not_utf_8_is_no_json_however_long_the_body_is(size: int) -> None:
    content = b'{"model": "\xd2x", "prompt": "' + b"a" * size + b'"}'
    with pytest.raises(ApiError, match="not valid JSON"):
        read_head(content, CompletionRequest)


@pytest.mark.parametrize("value", ["[]", "{}", '""', '{"a":[]}'])
def test_a_body_of_very_many_values_is_refused_before_it_is_decoded(value: str) -> None:
    content = f'{{"model": "fake", "prompt": "a", "metadata": [{",".join([value] * (MAX_VALUES + 1))}]}}'.encode()
    with pytest.raises(ApiError, match=f"more than {MAX_VALUES} strings, lists and objects") as refused:
        parse(content, CompletionRequest)
    assert refused.value.status == 400


@pytest.mark.parametrize("text", ["[]{}", '"', "\\", '\\"[', "\n[", "a"])
def test_what_stands_in_a_text_does_not_count(text: str) -> None:
    prompt = text * MAX_VALUES
    assert parse(json.dumps({"model": "fake", "prompt": prompt}).encode(), CompletionRequest).prompt == [prompt]


def test_token_ids_do_not_count() -> None:
    ids = [7] * (MAX_VALUES + 1)
    assert parse(json.dumps({"tokens": ids}).encode(), DetokenizeRequest).tokens == ids


TEXT = st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\[{,')
JSON = st.recursive(
    st.none() | st.integers() | st.text(TEXT),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(TEXT), inner, max_size=4),
)


@settings(deadline=None)
@given(JSON, st.booleans())
def test_values_are_counted_as_they_are_decoded(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    count = counted(value)
    with mock.patch.object(body, "MAX_VALUES", count):
        body.check_values(data)
    if count:
        with mock.patch.object(body, "MAX_VALUES", count - 1), pytest.raises(ApiError, match="more than"):
            body.check_values(data)


def counted(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(counted, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(counted, value))
    return int(isinstance(value, str))
