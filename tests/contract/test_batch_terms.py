"""Gateway and runtime agree on the header with a key's batch limits; requests and batches together stay within the
key's limits.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.keys.api_key import read_key
from plimsoll_gateway.proxy import headers
from plimsoll_gateway.proxy.request_peek import BYTES_PER_TOKEN, USUAL_ANSWER, read_fields
from plimsoll_runtime.api.batches import limits

HASH = "sha256:" + "0" * 64
LIMITS = st.none() | st.integers(1, 10**6)


def test_both_have_the_same_names_and_numbers() -> None:
    assert headers.BATCH.decode() == limits.HEADER
    assert (BYTES_PER_TOKEN, USUAL_ANSWER) == (limits.BYTES_PER_TOKEN, limits.USUAL_ANSWER)


@given(requests=LIMITS, tokens=LIMITS, share=st.integers(0, 90), batches=st.none() | st.integers(1, 1000))
def test_no_minute_has_more_than_the_key_may(
    requests: int | None, tokens: int | None, share: int, batches: int | None
) -> None:
    said: dict[str, Any] = {"hashes": [HASH], "batchShare": share, "models": ["caf\u00e9*", "a\nb"]}
    given = {"requestsPerMinute": requests, "tokensPerMinute": tokens, "batches": batches}
    said |= {name: value for name, value in given.items() if value is not None}
    key = read_key("team.json", json.dumps(said).encode())
    live = (key.limits.requests_per_minute, key.limits.tokens_per_minute)
    if key.batch is None:
        assert live == (requests, tokens)
        parts = [limit * share // 100 // (batches or 1) for limit in (requests, tokens) if limit is not None]
        assert 0 in parts
        return
    text = key.batch.header(key.name)
    assert b"\n" not in text
    terms = limits.read_terms(text.decode("latin-1"))
    assert terms is not None
    assert (terms.key, terms.models) == ("team", ("caf\u00e9*", "a\nb"))
    assert terms.at_once == batches or batches is None
    for limit, left, each in zip(
        (requests, tokens), live, (terms.requests_per_minute, terms.tokens_per_minute), strict=True
    ):
        if limit is None:
            assert (left, each) == (None, None)
        else:
            assert left is not None
            assert each is not None
            assert min(left, each) >= 1
            assert left + each * terms.at_once <= limit


@given(
    bounds=st.dictionaries(st.sampled_from(["max_tokens", "max_completion_tokens", "n", "best_of"]), st.integers(1, 99))
)
def test_both_expect_the_same_of_an_answer(bounds: dict[str, int]) -> None:
    body = {"model": "m", "messages": [], **bounds}
    asked = read_fields("/v1/chat/completions", memoryview(json.dumps(body).encode()))
    line = json.dumps({"custom_id": "1", "body": body}).encode()
    assert limits.expected_tokens(line, generates=True) - 1 - len(line) // 4 == asked.answer_tokens


def test_a_list_of_models_that_no_header_has_room_for_makes_no_batches() -> None:
    models = [f"model-{number}-{'x' * 200}" for number in range(100)]
    assert read_key("team.json", json.dumps({"hashes": [HASH], "models": models}).encode()).batch is None
