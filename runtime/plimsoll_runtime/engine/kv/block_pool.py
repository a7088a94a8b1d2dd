"""The pool of KV blocks: reference counts, names, and the order in which blocks are used again.

A block is in one of three states: *used* (somebody holds a reference), *idle* (nobody does, but it has a name, so
its contents can still be found), or *empty* (neither). Empty blocks are handed out first, then the idle block that
has been idle longest, which loses its name. Every operation is O(1) for each block it touches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

PADDING_BLOCK = 0
"""Never handed out: rows that pad a batch write here."""


class BlockPool:
    """Blocks 1 .. num_blocks - 1. A name stands for the contents of a block and belongs to at most one block.

    `on_evict` hears of every idle block that is handed out again or given up, with the name that it loses. `step` is
    the number of the step that is planned now, or will be next: whoever plans counts them.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int, bytes], None] | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs a block beside the padding block, got {num_blocks}")
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
        """Blocks that can be handed out at all."""
        return len(self._refs) - 1

    @property
    def available(self) -> int:
        """Blocks that can be handed out now."""
        return len(self._empty) + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that somebody holds."""
        return self.total - self.available

    @property
    def idle(self) -> int:
        """Blocks that nobody holds and whose contents can still be found."""
        return len(self._idle)

    @property
    def named(self) -> int:
        """Blocks whose contents can be found."""
        return len(self._index)

    def is_idle(self, block: int) -> bool:
        """Whether the block is named and nobody holds it."""
        return block in self._idle

    def is_named(self, block: int) -> bool:
        """Whether the block's contents can be found."""
        return self._names[block] is not None

    def name_of(self, block: int) -> bytes | None:
        """The name of the block's contents, if it has one."""
        return self._names[block]

    def references(self, block: int) -> int:
        """How many hold the block."""
        return self._refs[block]

    def left(self, block: int) -> int:
        """The `step` in which the last holder gave the block back; no later one has used it, unless it is held."""
        return self._left[block]

    def take(self) -> int:
        """A block to write to, held by the caller alone. Raises LookupError when none is available."""
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
        """Hold a block that is used or idle."""
        if self._refs[block] == 0:
            del self._idle[block]
        self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each block.

        The last block becomes idle first, and so is handed out first: the head of a chain is worth more than its
        tail, which cannot be found without it.
        """
        refs, names = self._refs, self._names
        for block in reversed(blocks):
            refs[block] -= 1
            if refs[block] > 0:
                continue
            if refs[block] < 0:
                raise ValueError(f"block {block} was given back more often than it was taken")
            self._left[block] = self.step
            if names[block] is None:
                self._empty.append(block)
            else:
                self._idle[block] = None

    def find(self, name: bytes) -> int | None:
        """The block with these contents."""
        return self._index.get(name)

    def touch(self, block: int) -> None:
        """Somebody has asked for the block's contents: if it is idle, it is now the last to be handed out."""
        if block in self._idle:
            self._idle.move_to_end(block)

    def names(self) -> list[bytes]:
        """The names of all blocks."""
        return list(self._index)

    def publish(self, block: int, name: bytes) -> int:
        """Give a used block its name; returns the block that bears it: this one, or one that did before."""
        bearer = self._index.setdefault(name, block)
        if bearer == block:
            self._names[block] = name
        return bearer

    def forget(self, block: int) -> None:
        """Make a block's contents unfindable, if they were findable."""
        if self._names[block] is None:
            return
        self._drop_name(block)
        if self._refs[block] == 0:
            del self._idle[block]
            self._empty.append(block)

    def forget_all(self) -> None:
        """Make the contents of every block unfindable."""
        for block in list(self._index.values()):
            self.forget(block)

    def grow(self, num_blocks: int) -> None:
        """Have so many blocks from now on, the padding block included. The new ones are handed out last."""
        old = len(self._refs)
        if num_blocks < old:
            raise ValueError(f"a pool of {old} blocks does not grow to {num_blocks}")
        self._left += [self.step] * (num_blocks - old)
        self._refs += [0] * (num_blocks - old)
        self._names += [None] * (num_blocks - old)
        self._empty[:0] = range(num_blocks - 1, old - 1, -1)

    def shrink(self, num_blocks: int) -> list[tuple[int, int]]:
        """Have so many blocks from now on, the padding block included: those behind are given up from the end.

        What somebody holds there is moved: the blocks (source, target) whose contents are to be copied before anything
        else is written, and which everybody who holds them is to know by their new numbers. Raises ValueError where
        more are held than are to stay.
        """
        if not max(2, self.used + 1) <= num_blocks <= len(self._refs):
            raise ValueError(f"{self.used} of {self.total} blocks are held: they cannot be {num_blocks - 1}")
        for block in [b for b in self._idle if b >= num_blocks]:
            del self._idle[block]
            self._evict(block)
        self._empty = [b for b in self._empty if b < num_blocks]
        held = [b for b in range(num_blocks, len(self._refs)) if self._refs[b]]
        moves = [(block, self._move(block)) for block in held]
        del self._left[num_blocks:], self._refs[num_blocks:], self._names[num_blocks:]
        return moves

    def _move(self, block: int) -> int:
        """Another block in the place of a held one."""
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
        """Raises AssertionError where a block is in no state, or in two."""
        empty = set(self._empty)
        assert len(empty) == len(self._empty), "a block is empty twice"
        assert not empty & self._idle.keys(), "a block is both empty and idle"
        assert PADDING_BLOCK not in empty | self._idle.keys(), "the padding block is in circulation"
        assert self._refs[PADDING_BLOCK] == 0, "the padding block is held"
        assert len(self._left) == len(self._refs), "it is not known of each block when it was given back"
        assert max(self._left) <= self.step, "a block was given back in a step that is still to come"
        for block in range(1, len(self._refs)):
            free, named = self._refs[block] == 0, self._names[block] is not None
            assert self._refs[block] >= 0, f"block {block} has {self._refs[block]} references"
            assert (block in empty) == (free and not named), f"block {block} should be empty, or is and should not"
            assert (block in self._idle) == (free and named), f"block {block} should be idle, or is and should not"
        named_blocks = {name: block for block, name in enumerate(self._names) if name is not None}
        assert named_blocks == self._index, "names and index disagree"
