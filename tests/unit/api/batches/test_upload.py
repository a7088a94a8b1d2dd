"""A form has the same parts however it is split into chunks; invalid forms are refused and not stored."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.api.batches.upload import (
    MAX_HEADERS,
    MAX_PARTS,
    MultipartError,
    MultipartReader,
    PartBegins,
    PartData,
    boundary_of,
)

# Bytes that boundaries are made of, so that data often begins like one.
DATA = st.lists(st.sampled_from([b"\r\n", b"--", b"b", b"-", b"\r", b"\n", b"x", b" "]), max_size=30).map(b"".join)


def parts_of(pieces: Iterable[bytes], boundary: bytes) -> list[tuple[str, str | None, bytes]]:
    reader = MultipartReader(boundary)
    parts: list[tuple[str, str | None, bytearray]] = []
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, PartBegins):
                parts.append((event.name, event.filename, bytearray()))
            elif isinstance(event, PartData):
                parts[-1][2].extend(event.data)
    reader.finish()
    return [(name, filename, bytes(data)) for name, filename, data in parts]


@given(
    st.lists(st.tuples(st.text("abc[]é", min_size=1), st.none() | st.text("abc .", min_size=1), DATA), max_size=4),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_pieces_make_no_difference(fields: list[tuple[str, str | None, bytes]], sizes: list[int]) -> None:
    # A boundary that the data cannot contain: it has no z.
    files = [(name, (filename, data)) for name, filename, data in fields]
    request = httpx.Request(
        "POST", "http://x", files=files, headers={"content-type": "multipart/form-data; boundary=bz"}
    )
    body = request.read() or b"--bz--\r\n"
    pieces, at = list[bytes](), 0
    while at < len(body):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(body[at : at + size])
        at += size
    assert parts_of(pieces, b"bz") == fields


@given(st.lists(DATA, max_size=5))
def test_anything_at_all_is_read_or_refused(pieces: list[bytes]) -> None:
    with suppress(MultipartError):
        assert parts_of([b"--b", *pieces], b"b") == parts_of([b"--b" + b"".join(pieces)], b"b")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx', "before its last boundary"),
        (b"--b\r\nA: " + b"x" * MAX_HEADERS, "longer than"),
        (b"--b\r\n\r\n\r\n", "has no name"),
        (b"--b" + b" " * (MAX_HEADERS + 1), "on the same line"),
        (
            b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (MAX_PARTS + 1),
            "more parts than the limit of 16",
        ),
    ],
)
def test_what_is_wrong_is_told(body: bytes, told: str) -> None:
    with pytest.raises(MultipartError, match=told):
        parts_of([body], b"b")


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
        ("multipart/form-data", None),
        ("multipart/mixed; boundary=abc", None),
        ("application/json", None),
        ("", None),
    ],
)
def test_the_boundary_stands_in_the_header(header: str, boundary: bytes | None) -> None:
    if boundary is None:
        with pytest.raises(MultipartError):
            boundary_of(header)
    else:
        assert boundary_of(header) == boundary


def test_a_name_may_be_escaped() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a\\"b"\r\n\r\n\r\n--b\r\n'
    body += b"content-disposition: form-data; name=\"g\"; filename*=UTF-8''%C3%A4.jsonl\r\n\r\n1\r\n--b--"
    assert parts_of([body], b"b") == [("f", 'a"b', b""), ("g", "ä.jsonl", b"1")]
