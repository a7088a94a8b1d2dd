from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.proxy import sse
from plimsoll_gateway.proxy.sse import LONGEST_HELD, EventAligner

BLANKS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
EVENTS = st.lists(st.tuples(st.sampled_from([b"data: x", b": ping", b"event: e\ndata: y"]), BLANKS)).map(
    lambda pairs: [text + blank for text, blank in pairs]
)


@given(EVENTS, st.binary(max_size=5).filter(lambda tail: b"\n" not in tail and b"\r" not in tail), st.data())
def test_only_whole_events_pass_and_nothing_is_lost(events: list[bytes], tail: bytes, data: st.DataObject) -> None:
    stream = b"".join(events) + tail
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    aligner = EventAligner()
    passed = b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        out = aligner.push(stream[start:end])
        passed += out
        assert not out or out.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
    assert passed == b"".join(events)
    assert aligner.rest() == tail
    assert not aligner.inside_event


def test_an_event_is_not_held_once_it_is_whole() -> None:
    aligner = EventAligner()
    assert aligner.push(b"data: a\n") == b""
    assert aligner.push(b"\ndata: b") == b"data: a\n\n"


def test_an_event_without_end_is_passed_on_in_pieces() -> None:
    aligner = EventAligner()
    piece = b"x" * (LONGEST_HELD // 2 + 1)
    assert aligner.push(piece) == b""
    assert aligner.push(piece) == piece * 2
    assert aligner.inside_event
    assert aligner.push(b"y\n\n") == b"y\n\n"
    assert not aligner.inside_event


def test_a_long_event_in_small_pieces_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0

    def counted(data: bytes, blank: bytes) -> int:
        nonlocal seen
        seen += len(data)
        return found(data, blank)

    found = sse._end
    monkeypatch.setattr(sse, "_end", counted)
    aligner = EventAligner()
    for _ in range(1000):
        assert aligner.push(b"x" * 100) == b""
    assert aligner.push(b"\n") == b""
    assert aligner.push(b"\n") == b"x" * 100_000 + b"\n\n"
    assert seen < 3 * 100_000 * 1.1
    assert aligner.rest() == b""


def test_after_an_event_that_was_too_long_nothing_of_it_is_looked_at_again() -> None:
    aligner = EventAligner()
    assert aligner.push(b"x" * LONGEST_HELD) == b""
    assert aligner.push(b"\n") == b"x" * LONGEST_HELD + b"\n"
    assert aligner.inside_event
    assert aligner.push(b"y") == b""
    assert aligner.rest() == b"y"
