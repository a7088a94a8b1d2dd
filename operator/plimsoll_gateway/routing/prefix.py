"""The beginning of a request, in blocks whose names stand for all that comes before them.

Taken from the JSON text of the prompt as it came. Two requests whose texts begin alike will have prompts that do, and
no template or tokenizer is needed to see it. The names are rooted in who may share: model, tenant and the client's
salt.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

BLOCK_BYTES = 512  # some 128 tokens: eight blocks of the runtime's cache
MOST_BLOCKS = 16

PREFIX_BYTES = BLOCK_BYTES * MOST_BLOCKS

MOST_KNOWN = 2048
"""Blocks whose names are remembered with their texts, some 2 MiB: most requests begin as others did, and to hash a
block takes seven times as long as to look it up."""
MOST_ROOTS = 512


def prefix_blocks(root: bytes, text: bytes, hint: bytes = b"") -> tuple[int, ...]:
    """The names of the whole blocks of a text, at most MOST_BLOCKS; each depends on all before it and on the root.

    A `hint` is a block of its own before them: requests with the same one go to one place, however short they are.
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
    """Some blocks, hashed: `name` stands for all of them. It is itself part of what is looked up behind it, so that a
    block is found behind the same ones only.
    """

    __slots__ = ("_digest", "name")

    def __init__(self, digest: blake2b) -> None:
        self._digest: Final = digest
        self.name: Final = int.from_bytes(digest.digest(), "little")

    def longer(self, block: bytes) -> _Begin:
        """These and one more."""
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
    """How much a replica is the right place for a block (rendezvous hashing: Thaler and Ravishankar, 1998).

    The replica of the highest rank has it. One that goes leaves its blocks to those that come next, for each block
    another one, and moves no other; one that comes takes its share from all. The mixing is splitmix64's.
    """
    return ranks(block, (replica_seed,))[0]


def ranks(block: int, replica_seeds: Iterable[int]) -> list[int]:
    """The same of several replicas."""
    found = []
    for own in replica_seeds:
        mixed = (block ^ own) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        found.append(mixed ^ mixed >> 31)
    return found


def seed(replica_id: str) -> int:
    """A replica's number for `rank`: every gateway has the same."""
    return int.from_bytes(blake2b(replica_id.encode(), digest_size=8).digest(), "little")


def place(block: int, what: str) -> float:
    """Where a block lies between 0 and 1 for this question: evenly, and the same at every gateway."""
    return rank(block, seed(what)) / 2**64
