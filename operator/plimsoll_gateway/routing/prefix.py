"""Hashes of a request's prefix in blocks; each hash covers all blocks before it.

They are computed from the JSON text of the prompt. Requests whose texts have a common prefix have prompts with one, so
that neither template nor tokenizer is needed. The root of the hashes contains the model, the tenant and the client's
salt, which limit sharing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

BLOCK_BYTES = 512  # about 128 tokens: eight blocks of the runtime's cache
MOST_BLOCKS = 16

PREFIX_BYTES = BLOCK_BYTES * MOST_BLOCKS

MOST_KNOWN = 2048
"""Size of the cache of hashed blocks, about 2 MiB: most requests share prefixes, and hashing a block takes seven
times as long as a lookup.
"""
MOST_ROOTS = 512


def prefix_blocks(root: bytes, text: bytes, hint: bytes = b"") -> tuple[int, ...]:
    """Return the hashes of the full blocks of a text, at most MOST_BLOCKS; each depends on the root and all blocks
    before it.

    A `hint` is a separate first block: requests with the same hint get the same replica, however short they are.
    """
    begin = _begun(root) if len(root) <= BLOCK_BYTES else _Begin(blake2b(root, digest_size=8))
    names = []
    if hint:
        begin = _longer(begin, b"\0" + hint) if len(hint) < BLOCK_BYTES else begin.longer(b"\0" + hint)
        names.append(begin.name)
    for at in range(0, min(len(text), PREFIX_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        begin = _longer(begin, text[at : at + BLOCK_BYTES])
        names.append(begin.name)
    return tuple(names)


class _Begin:
    """A hashed sequence of blocks with its hash `name`. The object is part of the cache key of the next block, so that
    a block is found after the same sequence only.
    """

    __slots__ = ("_digest", "name")

    def __init__(self, digest: blake2b) -> None:
        self._digest: Final = digest
        self.name: Final = int.from_bytes(digest.digest(), "little")

    def longer(self, block: bytes) -> _Begin:
        """Return this sequence with one more block."""
        digest = self._digest.copy()
        digest.update(block)
        return _Begin(digest)


@lru_cache(MOST_ROOTS)
def _begun(root: bytes) -> _Begin:
    return _Begin(blake2b(root, digest_size=8))


@lru_cache(MOST_KNOWN)
def _longer(begin: _Begin, block: bytes) -> _Begin:
    return begin.longer(block)


_MASK = (1 << 64) - 1


def rank(block: int, replica_seed: int) -> int:
    """Return the weight of a replica for a block (rendezvous hashing: Thaler and Ravishankar, 1998).

    The replica with the highest weight gets the block. A replica that leaves distributes its blocks over the others and
    moves no other block; a new one takes its part from all. The mixing function is splitmix64's.
    """
    return ranks(block, (replica_seed,))[0]


def ranks(block: int, replica_seeds: Iterable[int]) -> list[int]:
    """Return the weights of several replicas for a block."""
    found = []
    for own in replica_seeds:
        mixed = (block ^ own) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        found.append(mixed ^ mixed >> 31)
    return found


@lru_cache(4096)
def seed(replica_id: str) -> int:
    """Return a replica's seed for `rank`, the same at every gateway."""
    return int.from_bytes(blake2b(replica_id.encode(), digest_size=8).digest(), "little")


def place(block: int, what: str) -> float:
    """Return a uniform number from 0 to 1 for a block and a purpose, the same at every gateway."""
    return rank(block, seed(what)) / 2**64
