"""The beginning of a request, in blocks whose names stand for all that comes before them.

Taken from the JSON text of the prompt as it came. Two requests whose texts begin alike will have prompts that do, and
no template or tokenizer is needed to see it. The names are rooted in who may share: model, tenant and the client's
salt.
"""

from __future__ import annotations

from hashlib import blake2b

BLOCK_BYTES = 512  # some 128 tokens: eight blocks of the runtime's cache
MOST_BLOCKS = 16

PREFIX_BYTES = BLOCK_BYTES * MOST_BLOCKS


def prefix_blocks(root: bytes, text: bytes, hint: bytes = b"") -> tuple[int, ...]:
    """The names of the whole blocks of a text, at most MOST_BLOCKS; each depends on all before it and on the root.

    A `hint` is a block of its own before them: requests with the same one go to one place, however short they are.
    """
    digest = blake2b(root, digest_size=8)
    names = []
    if hint:
        digest.update(b"\0" + hint)
        names.append(int.from_bytes(digest.digest(), "little"))
    for at in range(0, min(len(text), PREFIX_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        digest.update(text[at : at + BLOCK_BYTES])
        names.append(int.from_bytes(digest.digest(), "little"))
    return tuple(names)


_MASK = (1 << 64) - 1


def rank(block: int, replica_seed: int) -> int:
    """How much a replica is the right place for a block (rendezvous hashing: Thaler and Ravishankar, 1998).

    The replica of the highest rank has it. One that goes leaves its blocks to those that come next, for each block
    another one, and moves no other; one that comes takes its share from all. The mixing is splitmix64's.
    """
    mixed = (block ^ replica_seed) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31


def seed(replica_id: str) -> int:
    """A replica's number for `rank`: every gateway has the same."""
    return int.from_bytes(blake2b(replica_id.encode(), digest_size=8).digest(), "little")


def place(block: int, what: str) -> float:
    """Where a block lies between 0 and 1 for this question: evenly, and the same at every gateway."""
    return rank(block, seed(what)) / 2**64
