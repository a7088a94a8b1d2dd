"""The pool of KV blocks: reference counts, names (block hashes), and the order of reuse.

A block is in one of three states: *used* (it has references), *idle* (no references, but a name by which its contents
can be found: a cached block), or *empty* (neither). `take` returns empty blocks first, then the block that has been
idle longest, which loses its name. Every operation is O(1) for each block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

PADDING_BLOCK = 0
"""The padding block, which is never allocated: padded rows of a batch write to it."""


class BlockPool:
    """A pool of the blocks 1 .. num_blocks - 1. A name (a block hash) identifies the contents of at most one block.

    `on_evict(block, name)` is called for each idle block that loses its name because it is reused or removed. `step` is
    the number of the step being planned, or of the next one; the code that plans steps counts it.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int, bytes], None] | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks (one is the padding block), not {num_blocks}")
        self.step = 1
        self._left = [0] * num_blocks
        self._refs = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._empty = list(range(num_blocks - 1, PADDING_BLOCK, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._on_evict = on_evict
        self.evictions = 0

    @property
    def total(self) -> int:
        """Number of blocks, without the padding block."""
        return len(self._refs) - 1

    @property
    def available(self) -> int:
        """Number of blocks that `take` can return."""
        return len(self._empty) + len(self._idle)

    @property
    def used(self) -> int:
        """Number of blocks with references."""
        return self.total - self.available

    @property
    def idle(self) -> int:
        """Number of cached blocks: they have a name and no references."""
        return len(self._idle)

    @property
    def named(self) -> int:
        """Number of blocks with a name, used or idle."""
        return len(self._index)

    def is_idle(self, block: int) -> bool:
        """Whether the block has a name and no references."""
        return block in self._idle

    def is_named(self, block: int) -> bool:
        """Whether the block has a name, by which `find` returns it."""
        return self._names[block] is not None

    def name_of(self, block: int) -> bytes | None:
        """Return the name of the block's contents, or None."""
        return self._names[block]

    def references(self, block: int) -> int:
        """Return the block's reference count."""
        return self._refs[block]

    def left(self, block: int) -> int:
        """Return the `step` in which the block's last reference was released. Unless it has references again, no later
        step uses it.
        """
        return self._left[block]

    def take(self) -> int:
        """Return a block to write to, with one reference. Raises LookupError if none is available."""
        if self._empty:
            block = self._empty.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._evict(block)
        else:
            raise LookupError(f"all {self.total} blocks are in use")
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a used or idle block."""
        if self._refs[block] == 0:
            del self._idle[block]
        self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Release one reference to each block.

        The last block becomes idle first, so it is reused first: the head of a chain is worth more than its tail, which
        cannot be found without the head.
        """
        refs, names = self._refs, self._names
        for block in reversed(blocks):
            refs[block] -= 1
            if refs[block] > 0:
                continue
            if refs[block] < 0:
                raise ValueError(f"block {block} was released more often than it was taken")
            self._left[block] = self.step
            if names[block] is None:
                self._empty.append(block)
            else:
                self._idle[block] = None

    def find(self, name: bytes) -> int | None:
        """Return the block with this name, or None."""
        return self._index.get(name)

    def touch(self, block: int) -> None:
        """Mark an idle block as the most recently used one, so that it is reused last."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def publish(self, block: int, name: bytes) -> int:
        """Give a used block its name. Return the block that has the name: this one, or another that had it before."""
        bearer = self._index.setdefault(name, block)
        if bearer == block:
            self._names[block] = name
        return bearer

    def forget(self, block: int) -> None:
        """Remove a block's name, if it has one, so that its contents cannot be found."""
        if self._names[block] is None:
            return
        self._drop_name(block)
        if self._refs[block] == 0:
            del self._idle[block]
            self._empty.append(block)

    def forget_all(self) -> None:
        """Remove the names of all blocks."""
        for block in list(self._index.values()):
            self.forget(block)

    def grow(self, num_blocks: int) -> None:
        """Grow to `num_blocks`, the padding block included. New blocks are allocated last."""
        old = len(self._refs)
        if num_blocks < old:
            raise ValueError(f"a pool of {old} blocks cannot grow to {num_blocks}")
        self._left += [self.step] * (num_blocks - old)
        self._refs += [0] * (num_blocks - old)
        self._names += [None] * (num_blocks - old)
        self._empty[:0] = range(num_blocks - 1, old - 1, -1)

    def shrink(self, num_blocks: int) -> list[tuple[int, int]]:
        """Shrink to `num_blocks`, the padding block included, by removing the last blocks.

        Return the moves (source, target) of used blocks beyond the new end. The caller copies their contents before
        anything else is written, and renumbers them in all block tables. Raises ValueError if fewer blocks than the
        used ones would remain.
        """
        if not max(2, self.used + 1) <= num_blocks <= len(self._refs):
            raise ValueError(f"cannot shrink to {num_blocks - 1} blocks: {self.used} of {self.total} are in use")
        for block in [b for b in self._idle if b >= num_blocks]:
            del self._idle[block]
            self._evict(block)
        self._empty = [b for b in self._empty if b < num_blocks]
        held = [b for b in range(num_blocks, len(self._refs)) if self._refs[b]]
        moves = [(block, self._move(block)) for block in held]
        del self._left[num_blocks:], self._refs[num_blocks:], self._names[num_blocks:]
        return moves

    def _move(self, block: int) -> int:
        """Replace a used block by another one, with its references and name; return the other."""
        target = self.take()
        self._refs[target], self._refs[block] = self._refs[block], 0
        name = self._names[block]
        if name is not None:
            self._names[target], self._names[block] = name, None
            self._index[name] = target
        return target

    def _evict(self, block: int) -> None:
        name = self._drop_name(block)
        self.evictions += 1
        if self._on_evict is not None:
            self._on_evict(block, name)

    def _drop_name(self, block: int) -> bytes:
        name = self._names[block]
        assert name is not None
        del self._index[name]
        self._names[block] = None
        return name

    def check_integrity(self) -> None:
        """Raise AssertionError if a block is in no state, or in two."""
        empty = set(self._empty)
        assert len(empty) == len(self._empty), "a block is empty twice"
        assert not empty & self._idle.keys(), "a block is both empty and idle"
        assert PADDING_BLOCK not in empty | self._idle.keys(), "the padding block is listed as free"
        assert self._refs[PADDING_BLOCK] == 0, "the padding block is held"
        assert len(self._left) == len(self._refs), "the number of release steps differs from the number of blocks"
        assert max(self._left) <= self.step, "a block was released in a future step"
        for block in range(1, len(self._refs)):
            free, named = self._refs[block] == 0, self._names[block] is not None
            assert self._refs[block] >= 0, f"block {block} has {self._refs[block]} references"
            assert (block in empty) == (free and not named), f"block {block}: wrong 'empty' state"
            assert (block in self._idle) == (free and named), f"block {block}: wrong 'idle' state"
        named_blocks = {name: block for block, name in enumerate(self._names) if name is not None}
        assert named_blocks == self._index, "names and index disagree"
