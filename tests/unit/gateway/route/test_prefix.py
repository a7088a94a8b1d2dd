"""Names of blocks stand for everything before them, and for whose they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.route.prefix import BLOCK_BYTES, MOST_BLOCKS, prefix_blocks


@given(same=st.integers(0, 5), one=st.integers(0, 3), other=st.integers(0, 3))
def test_texts_share_as_many_names_as_whole_blocks(same: int, one: int, other: int) -> None:
    begin = b"".join(bytes([n]) * BLOCK_BYTES for n in range(same))
    first = prefix_blocks(b"r", begin + b"x" * BLOCK_BYTES * one)
    second = prefix_blocks(b"r", begin + b"y" * BLOCK_BYTES * other)
    assert (len(first), len(second)) == (same + one, same + other)
    assert first[:same] == second[:same]
    assert not set(first[same:]) & set(second[same:])


def test_the_same_block_elsewhere_or_of_others_has_another_name() -> None:
    block = b"x" * BLOCK_BYTES
    names = [*prefix_blocks(b"one", block * 3), *prefix_blocks(b"other", block * 3)]
    assert len(set(names)) == 6


def test_only_whole_blocks_count_and_only_the_first_ones() -> None:
    assert prefix_blocks(b"", b"x" * (BLOCK_BYTES - 1)) == ()
    assert len(prefix_blocks(b"", b"x" * (BLOCK_BYTES + 1))) == 1
    assert len(prefix_blocks(b"", b"x" * BLOCK_BYTES * (MOST_BLOCKS + 4))) == MOST_BLOCKS


def test_names_are_the_same_in_every_gateway() -> None:
    """They were written down: a change sends every prefix elsewhere while gateways of two versions run."""
    assert prefix_blocks(b"root", b"a" * 1024) == (11708322230185148723, 10091477538854278888)


def test_a_hint_is_a_block_before_all_others() -> None:
    block = b"x" * BLOCK_BYTES
    (alone,) = prefix_blocks(b"r", b"", b"h")
    first, second = prefix_blocks(b"r", block, b"h")
    assert first == alone
    assert second not in prefix_blocks(b"r", block)
    assert prefix_blocks(b"other", b"", b"h") != (alone,)
