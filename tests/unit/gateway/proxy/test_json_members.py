"""The model's name is found among any other members, in almost no memory."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.proxy.json_members import model_name

SIZE = 8 << 20
HEAD = b'{"model": "m", "x": '
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.long
@given(others=st.dictionaries(st.text(), VALUES, max_size=20), name=st.text(min_size=1), after=st.booleans())
def test_it_is_what_a_json_parser_finds(others: dict[str, object], name: str, after: bool) -> None:
    others.pop("model", None)
    document = {**others, "model": name} if after else {"model": name, **others}
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False, indent=1)):
        assert model_name(memoryview(text.encode())) == name


def filled(head: bytes, unit: bytes, tail: bytes) -> bytes:
    return head + unit * ((SIZE - len(head) - len(tail)) // len(unit)) + tail


@pytest.mark.parametrize(
    "body",
    [
        filled(HEAD + b"[[0]", b",[0]", b"]}"),
        filled(HEAD + b"[[]", b",[]", b"]}"),
        filled(HEAD + b"[{}", b',{"a":{}}', b"]}"),
        filled(HEAD + b"[1", b",106201", b"]}"),
        filled(HEAD + b'"', b"\\n", b'"}'),
        filled(HEAD + b"0", b" ", b"}"),
        filled(HEAD + b"1", b"1", b"}"),
        filled(HEAD + b'"', "é".encode(), '😀"}'.encode()),
        b"{" + b",".join(b'"%07d":0' % index for index in range(SIZE // 12)) + b"}",
        b'{"model": [' + b"[0]," * (SIZE // 4) + b"0]}",
        b'{"model": "' + b"m" * SIZE + b'"}',
        filled(HEAD, b"[", b""),
    ],
    ids=["lists", "empty", "objects", "tokens", "escapes", "blank", "digits", "wide", "keys", "model", "name", "depth"],
)
def test_no_body_makes_it_build_anything(body: bytes) -> None:
    tracemalloc.start()
    try:
        refused = _refusal(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert refused is None or refused.status == 400


def _refusal(body: bytes) -> Refusal | None:
    try:
        assert model_name(memoryview(body)) == "m"
    except Refusal as refusal:
        return refusal
    return None
