"""W3C trace context: what is read is written again, and what is malformed begins a new trace."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll_telemetry.trace_context import MOST_STATE, TraceContext, new_span_id, new_trace_id, read_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
KEYS = st.builds(str.__add__, st.sampled_from("az09"), st.text("az09_-*/@", max_size=8))
PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in ",=")
VALUES = st.text(PLAIN, min_size=1, max_size=12)
STATES = st.dictionaries(KEYS, VALUES, max_size=4).map(lambda d: ",".join(f"{k}={v}" for k, v in d.items()))


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans(), STATES)
def test_round_trip(trace_id: int, span_id: int, sampled: bool, state: str) -> None:
    context = TraceContext(trace_id, span_id, sampled, state)
    assert read_context(context.traceparent, context.state) == context
    child = context.child()
    assert (child.trace, child.sampled, child.state) == (context.trace, sampled, state)
    assert child.span_id != span_id


def test_ids_are_never_zero_and_differ() -> None:
    traces, spans = {new_trace_id() for _ in range(1000)}, {new_span_id() for _ in range(1000)}
    assert len(traces) == len(spans) == 1000
    assert 0 not in traces | spans
    assert max(traces) < 2**128
    assert max(spans) < 2**64


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "garbage",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"0-{TRACE}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
        f"{PARENT},{PARENT}",
        f"{PARENT}\n",
        f"\x0b{PARENT}",
        f"01-{TRACE}-{SPAN}-01more",
        f"01-{TRACE}-{SPAN}-01-\xff",
        "0" * 65536,
        PARENT + "-" + "0" * 65536,
        f"01-{TRACE}-{SPAN}-01-" + "0" * 65536,
        " " * 65536 + PARENT,
        f"00-{'٣' * 32}-{SPAN}-01",
    ],
)
def test_a_malformed_parent_is_ignored(header: str | None) -> None:
    assert read_context(header, "a=b") is None


@given(st.text(string.hexdigits + "-", max_size=80) | st.text(max_size=300) | st.binary(max_size=200).map(repr))
def test_whatever_is_accepted_has_the_form_of_the_recommendation(header: str) -> None:
    found = read_context(header)
    if found is not None:
        fields = header.strip(" \t").split("-")
        assert fields[0] != "ff"
        assert [f"{found.trace_id:032x}", f"{found.span_id:016x}"] == fields[1:3]
        assert found.sampled == bool(int(fields[3], 16) & 1)


@pytest.mark.parametrize("tail", ["", "-", "-more", "-more-fields-01"])
@pytest.mark.parametrize("version", ["01", "cc", "fe"])
def test_later_versions_may_have_more_fields(version: str, tail: str) -> None:
    found = read_context(f"{version}-{TRACE}-{SPAN}-01{tail}")
    assert found is not None
    assert found.traceparent == PARENT, "we send our own version"


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)])
def test_only_the_lowest_flag_decides(flags: str, sampled: bool) -> None:
    found = read_context(f" 00-{TRACE}-{SPAN}-{flags}\t")
    assert found is not None
    assert found.sampled is sampled


@pytest.mark.parametrize(
    "state",
    [
        *("x" * 65536, "a=" + "b" * 65536, "a=" + "b" * MOST_STATE, ",".join(f"k{i}=v" for i in range(33))),
        *("a", "a=", "=b", "A=b", "a=b,,c", "a=\x01", "a=b=c", "ä=b", "a=b\n"),
    ],
)
def test_a_malformed_state_is_dropped_and_the_parent_stays(state: str) -> None:
    found = read_context(PARENT, state)
    assert found is not None
    assert (found.trace, found.state) == (TRACE, "")


def test_empty_members_and_spaces_of_a_state_are_left_out() -> None:
    found = read_context(PARENT, " a=b , ,\tvendor@sys=x y ,")
    assert found is not None
    assert found.state == "a=b,vendor@sys=x y"
