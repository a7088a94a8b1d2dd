"""The prefix index removes the oldest entries, and agrees with a plain list."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plimsoll_gateway.routing.prefix_index import MOST_REPLICAS, PrefixIndex

MOST = 6


class MemoryMachine(RuleBasedStateMachine):
    """`uses` has all blocks in order of use, `places` the replicas of each in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = PrefixIndex(MOST)
        self.uses: list[int] = []
        self.places: dict[int, list[str]] = {}

    @rule(blocks=st.lists(st.integers(0, 9), unique=True, max_size=4), replica=st.sampled_from("abcdef"))
    def send(self, blocks: list[int], replica: str) -> None:
        self.memory.sent(blocks, replica)
        for block in blocks:
            if block in self.uses:
                self.uses.remove(block)
            self.uses.append(block)
            known = self.places.setdefault(block, [])
            if replica not in known[-MOST_REPLICAS:]:
                known.append(replica)
        for gone in self.uses[:-MOST]:
            del self.places[gone]
        self.uses = self.uses[-MOST:]

    @rule(blocks=st.lists(st.integers(0, 9), unique=True, max_size=4))
    def ask(self, blocks: list[int]) -> None:
        found = self.memory.depths(blocks)
        for replica in "abcdef":
            depths = [at for at, b in enumerate(blocks, 1) if replica in self.places.get(b, [])[-MOST_REPLICAS:]]
            assert found.get(replica) == (max(depths) if depths else None)

    @invariant()
    def bounded(self) -> None:
        self.memory.check_integrity()


TestMemory = MemoryMachine.TestCase
