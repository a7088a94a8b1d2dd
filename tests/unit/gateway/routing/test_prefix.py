"""Hashes of blocks cover all blocks before them, and the root."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from plimsoll_gateway.routing import prefix
from plimsoll_gateway.routing.prefix import (
    BLOCK_BYTES,
    MOST_BLOCKS,
    MOST_KNOWN,
    MOST_ROOTS,
    PREFIX_BYTES,
    prefix_blocks,
)


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
    """Fixed values: a change would redirect all prefixes while gateways of two versions run."""
    assert prefix_blocks(b"root", b"a" * 1024) == (11708322230185148723, 10091477538854278888)


@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from([b"", b"r", b"s", b"r" * BLOCK_BYTES * 2]),
            st.lists(st.sampled_from([b"x", b"y"]), max_size=4),
            st.sampled_from([b"", b"h", b"h" * BLOCK_BYTES]),
        ),
        max_size=20,
    )
)
def test_what_is_remembered_has_the_names_that_it_would_have(asked: list[tuple[bytes, list[bytes], bytes]]) -> None:
    for root, blocks, hint in asked:
        digest, names = blake2b(root, digest_size=8), []
        for piece in [*([b"\0" + hint] if hint else []), *(block * BLOCK_BYTES for block in blocks)]:
            digest.update(piece)
            names.append(int.from_bytes(digest.digest(), "little"))
        assert prefix_blocks(root, b"".join(block * BLOCK_BYTES for block in blocks), hint) == tuple(names)


def test_no_more_is_remembered_than_so_much() -> None:
    for number in range(MOST_KNOWN + 10):
        prefix_blocks(b"%d" % number, b"x" * BLOCK_BYTES, b"h" * PREFIX_BYTES)
    assert prefix._longer.cache_info().currsize <= MOST_KNOWN
    assert prefix._begun.cache_info().currsize <= MOST_ROOTS
    before = prefix._begun.cache_info().currsize, prefix._longer.cache_info().currsize
    prefix_blocks(b"r" * (BLOCK_BYTES + 1), b"", b"h" * BLOCK_BYTES)  # larger than a block
    assert (prefix._begun.cache_info().currsize, prefix._longer.cache_info().currsize) == before


def test_a_hint_is_a_block_before_all_others() -> None:
    block = b"x" * BLOCK_BYTES
    (alone,) = prefix_blocks(b"r", b"", b"h")
    first, second = prefix_blocks(b"r", block, b"h")
    assert first == alone
    assert second not in prefix_blocks(b"r", block)
    assert prefix_blocks(b"other", b"", b"h") != (alone,)
