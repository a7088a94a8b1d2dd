"""Bodies: what is no JSON, or no request, is refused in few words."""

import pytest

from plimsoll_runtime.api.body import parse
from plimsoll_runtime.api.errors import ApiError
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
        (b'{"model": "fake", "prompt": "a", "' + b"x" * 1000 + b'": 1}', "Unknown parameter"),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{len(value)} bytes {value[:20]!r}",
)
def test_bodies_that_are_no_json_are_refused(content: bytes, told: str) -> None:
    with pytest.raises(ApiError, match=told) as refused:
        parse(content, CompletionRequest)
    assert refused.value.status == 400
    assert len(refused.value.message) < 500
