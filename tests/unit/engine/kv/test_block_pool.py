"""The pool compared with a model of it, and the order of reuse."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from plimsoll_runtime.engine.kv.block_pool import PADDING_BLOCK, BlockPool


class Pool(RuleBasedStateMachine):
    """Blocks are taken, shared, named, forgotten and released; a model tracks holders and names."""

    @initialize(count=st.integers(2, 12))
    def start(self, count: int) -> None:
        self.pool = BlockPool(count)
        self.count = count
        self.held: Counter[int] = Counter()
        self.names: dict[bytes, int] = {}
        self.idle: list[int] = []

    @precondition(lambda self: self.pool.available)
    @rule()
    def take(self) -> None:
        empty = self.pool.available > len(self.idle)
        block = self.pool.take()
        assert block != PADDING_BLOCK
        assert self.held[block] == 0
        if not empty:
            assert block == self.idle.pop(0), "not the one that was idle longest"
            self.names = {name: named for name, named in self.names.items() if named != block}
        assert block not in self.names.values()
        self.held[block] = 1

    @precondition(lambda self: not self.pool.available)
    @rule()
    def take_from_nothing(self) -> None:
        with pytest.raises(LookupError, match="in use"):
            self.pool.take()

    @precondition(lambda self: +self.held or self.idle)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted({*+self.held, *self.idle})))
        self.pool.share(block)
        self.held[block] += 1
        if block in self.idle:
            self.idle.remove(block)

    @precondition(lambda self: +self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(+self.held)), min_size=1, unique=True))
        self.pool.release(blocks)
        for block in reversed(blocks):
            self.held[block] -= 1
            if not self.held[block] and block in self.names.values():
                self.idle.append(block)

    @precondition(lambda self: +self.held)
    @rule(data=st.data(), number=st.integers(0, 6))
    def publish(self, data: st.DataObject, number: int) -> None:
        unnamed = sorted(set(+self.held) - set(self.names.values()))
        if not unnamed:
            return
        block, name = data.draw(st.sampled_from(unnamed)), b"%d" % number
        assert self.pool.publish(block, name) == self.names.setdefault(name, block)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(1, self.count - 1))
        self.pool.forget(block)
        self._forgotten(block)

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        for block in list(self.names.values()):
            self._forgotten(block)

    @rule(more=st.integers(0, 6))
    def grow(self, more: int) -> None:
        self.count += more
        self.pool.grow(self.count)

    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        """Used blocks keep their holders and names under new numbers; only idle blocks are evicted."""
        least = max(2, self.pool.used + 1)
        count = data.draw(st.just(least) | st.integers(least, self.count))
        evictions = self.pool.evictions
        gone = [b for b in self.idle if b >= count]
        moves = dict(self.pool.shrink(count))
        assert sorted(moves) == sorted(b for b in +self.held if b >= count)
        assert all(target < count for target in moves.values())
        empty = count - 1 - len([b for b in self.idle if b < count]) - len([b for b in +self.held if b < count])
        gone += [b for b in self.idle if b < count][: max(0, len(moves) - empty)]
        assert self.pool.evictions - evictions == len(gone)
        self.idle = [b for b in self.idle if b not in gone]
        self.names = {name: moves.get(b, b) for name, b in self.names.items() if b not in gone}
        self.held = Counter({moves.get(b, b): held for b, held in (+self.held).items()})
        self.count = count

    @precondition(lambda self: self.pool.used)
    @rule()
    def shrink_below_what_is_held(self) -> None:
        with pytest.raises(ValueError, match="are in use"):
            self.pool.shrink(self.pool.used)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        for number in range(7):
            assert self.pool.find(b"%d" % number) == self.names.get(b"%d" % number)
        assert [self.pool.references(b) for b in range(self.count)] == [self.held[b] for b in range(self.count)]
        assert [b for b in range(self.count) if self.pool.is_idle(b)] == sorted(self.idle)
        assert (self.pool.used, self.pool.idle) == (len(+self.held), len(self.idle))
        assert self.pool.available == self.pool.total - self.pool.used == self.count - 1 - len(+self.held)

    def _forgotten(self, block: int) -> None:
        self.names = {name: named for name, named in self.names.items() if named != block}
        if block in self.idle:
            self.idle.remove(block)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_is_moved_keeps_its_holders_and_its_name() -> None:
    pool = BlockPool(6)
    blocks = [pool.take() for _ in range(5)]
    pool.share(blocks[4])
    assert pool.publish(blocks[4], b"name") == blocks[4]
    pool.release(blocks[:2])
    moves = dict(pool.shrink(4))
    assert moves.keys() == {4, 5}
    assert pool.find(b"name") == moves[blocks[4]]
    assert pool.references(moves[blocks[4]]) == 2
    assert (pool.total, pool.used, pool.available) == (3, 3, 0)
    pool.check_integrity()
    pool.grow(5)
    assert pool.take() == 4
    pool.check_integrity()


def test_it_is_known_in_which_step_a_block_was_given_back() -> None:
    """Counts the last holder's release. Blocks that a grown pool adds may have been used before, by unknown holders."""
    pool = BlockPool(4)
    first, other = pool.take(), pool.take()
    pool.share(first)
    pool.step = 5
    pool.release([first, other])
    pool.step = 7
    pool.release([first])
    assert (pool.left(first), pool.left(other), pool.left(3)) == (7, 5, 0)
    pool.shrink(3)
    pool.step = 8
    pool.grow(5)
    assert [pool.left(block) for block in (first, other, 3, 4)] == [7, 5, 8, 8]
    pool.check_integrity()


def test_what_is_given_back_too_often_is_noticed() -> None:
    pool = BlockPool(3)
    block = pool.take()
    pool.release([block])
    with pytest.raises(ValueError, match="more often"):
        pool.release([block])


def test_a_pool_needs_a_block_beside_the_padding() -> None:
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(1)


def test_blocks_that_hold_nothing_are_used_before_cached_ones() -> None:
    pool = BlockPool(5)
    chain = [pool.take(), pool.take()]
    for block in chain:
        pool.publish(block, b"%d" % block)
    pool.release(chain)
    fresh = [pool.take(), pool.take()]
    assert pool.evictions == 0
    assert set(fresh).isdisjoint(chain)
    assert [pool.take(), pool.take()] == chain[::-1], "the tail of a chain goes first"
    assert pool.evictions == 2


def test_integrity_is_not_taken_for_granted() -> None:
    pool = BlockPool(3)
    pool.check_integrity()
    pool._refs[1] = 1
    with pytest.raises(AssertionError, match="block 1"):
        pool.check_integrity()
