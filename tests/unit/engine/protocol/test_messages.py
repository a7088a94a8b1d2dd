"""Packed log probabilities are unpacked unchanged, in parts of limited size."""

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.messages import PART, LogprobEntry, pack, unpack

NUMBERS = st.floats(allow_nan=False, max_value=0.0)
ENTRIES = st.builds(
    LogprobEntry,
    st.integers(0, 2**31),
    NUMBERS,
    st.integers(1, 2**31),
    st.lists(st.tuples(st.integers(0, 2**31), NUMBERS)),
)


@given(st.lists(ENTRIES), st.lists(ENTRIES))
def test_what_goes_in_comes_out(first: list[LogprobEntry], then: list[LogprobEntry]) -> None:
    assert list(unpack([*pack(first), *pack(then)])) == [*first, *then]


def test_parts_are_bounded() -> None:
    entries = [LogprobEntry(number, -1.0, 1, []) for number in range(2 * PART + 1)]
    parts = pack(entries)
    assert [len(list(unpack([part]))) for part in parts] == [PART, PART, 1]
    assert list(unpack(parts)) == entries
