"""A key file has the owner and limits of a key; errors in it are reported without quotes of its content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.keys.api_key import KeyFileError, read_key
from plimsoll_gateway.keys.secret import digest_of, new_key

KEY = f"plk-{'k3Y_' * 10}end"
HASH = digest_of(KEY.encode())


def content(**fields: Any) -> bytes:
    return json.dumps({"hashes": [HASH], **fields}).encode()


def test_the_least_file_has_a_hash_and_no_limits() -> None:
    key = read_key("team-a.json", content())
    limits = key.limits
    assert (key.name, key.tenant, limits.hashes, limits.models) == ("team-a", "team-a", (HASH,), ("*",))
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.streams) == (None, None, None)
    assert (limits.priority, limits.weight) == (0, 1)


def test_every_field_is_read() -> None:
    fields = {"models": ["qwen*", "org/m"], "requestsPerMinute": 60, "tokensPerMinute": 10_000, "streams": 4,
              "priority": -3, "weight": 5, "tenant": "shared"}  # fmt: skip
    key = read_key("a.json", content(**fields))
    limits = key.limits
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.streams) == (60, 10_000, 4)
    assert (limits.priority, limits.weight, key.tenant) == (-3, 5, "shared")
    assert [key.may_use(name) for name in ("qwen3", "org/m", "org/mm", "Qwen3", "llama")] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.txt", content(), "must end in .json"),
        ("a", content(), "must end in .json"),
        (".json", content(), "1 to 64"),
        ("a b.json", content(), "1 to 64"),
        ("x" * 65 + ".json", content(), "1 to 64"),
        ("a.json", b"", "truncated"),
        ("a.json", b"{", "truncated"),
        ("a.json", b"[]", "Expected `object`"),
        ("a.json", b"\xff", "malformed"),
        ("a.json", b"{}", "hashes"),
        ("a.json", b'{"hashes": ["\xff"]}', "utf-8"),
        ("a.json", b"[" * 100_000, "recursion|Expected"),
        ("a.json", content(hashes=[]), r"length >= 1 - at `\$.hashes`"),
        ("a.json", content(hashes=[KEY]), r"matching regex .* at `\$.hashes\[0\]`"),
        ("a.json", content(models=[]), r"\$.models"),
        ("a.json", content(models=[""]), r"\$.models"),
        ("a.json", content(requestsPerMinute=0), r">= 1 - at `\$.requestsPerMinute`"),
        ("a.json", content(tokensPerMinute="many"), r"\$.tokensPerMinute"),
        ("a.json", content(streams=1.5), r"\$.streams"),
        ("a.json", content(priority=101), r"\$.priority"),
        ("a.json", content(weight=0), r"\$.weight"),
        ("a.json", content(weight=1001), r"\$.weight"),
        ("a.json", content(tenant="a/b"), r"\$.tenant"),
        ("a.json", content(tenant="a\n"), r"\$.tenant"),
        ("a.json", content(**{KEY: 1}), "unknown"),
        ("a.json", content(request_per_minute=1), "unknown"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_quoted(name: str, text: bytes, what: str) -> None:
    with pytest.raises(KeyFileError, match=what) as error:
        read_key(name, text)
    assert KEY not in str(error.value)


@given(text=st.binary(max_size=200))
def test_no_content_is_anything_but_a_key_or_an_error(text: bytes) -> None:
    with pytest.raises(KeyFileError):
        read_key("a.json", text)


@pytest.mark.parametrize(
    "text", [b"", b"plk-short", b"password", KEY.encode() + b"x", KEY.encode()[:-1], b"x" + KEY.encode()]
)
def test_only_what_was_made_here_is_ever_hashed(text: bytes) -> None:
    assert digest_of(text) is None


def test_keys_are_new_each_time() -> None:
    assert len({new_key() for _ in range(100)}) == 100
    assert all(digest_of(new_key().encode()) for _ in range(100))
