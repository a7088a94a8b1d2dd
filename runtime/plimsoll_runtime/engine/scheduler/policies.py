"""Scheduling policies: order keys of sequences, and the expected lengths that some policies need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from plimsoll_runtime.engine.sequence import SequenceState

ENOUGH = 8
"""Answers of a kind that must have ended before their mean is believed."""

MEMORY = 32
"""Answers over which the mean is taken, the older ones fading: so it follows when the traffic changes."""

SCALE = 1024


@dataclass(slots=True)
class _Mean:
    """A mean that forgets, in fixed point: `scaled` is SCALE times the mean."""

    count: int = 0
    scaled: int = 0

    def add(self, value: int) -> None:
        self.count += 1
        self.scaled += (value * SCALE - self.scaled) // min(self.count, MEMORY)


class LengthEstimator:
    """Means by kind of request: the magnitudes of prompt and limit, then the limit's alone, then all together.

    There are no more kinds than pairs of magnitudes, so it stays small.
    """

    def __init__(self) -> None:
        self._means: dict[tuple[int, ...], _Mean] = {}

    def expect(self, sequence: SequenceState) -> int:
        """Tokens that the answer will have, in all likelihood; never more than it may have."""
        limit = sequence.max_len - sequence.prompt_len
        if sequence.context.params.ignore_eos and not sequence.stop_ids:
            return limit
        for kind in _kinds(sequence):
            mean = self._means.get(kind)
            if mean is not None and mean.count >= ENOUGH:
                return max(1, min(limit, mean.scaled // SCALE))
        return limit

    def learn(self, sequence: SequenceState) -> None:
        """Learn from an answer that has ended by itself. One that may not end early (`ignore_eos`) tells nothing."""
        if sequence.context.params.ignore_eos and not sequence.stop_ids:
            return
        for kind in _kinds(sequence):
            self._means.setdefault(kind, _Mean()).add(len(sequence.output_ids))


def _kinds(sequence: SequenceState) -> tuple[tuple[int, ...], ...]:
    limit = (sequence.max_len - sequence.prompt_len).bit_length()
    return (limit, sequence.prompt_len.bit_length()), (limit,), ()


SECOND_NS = 1_000_000_000

PRIORITY_SECONDS = 10
"""How many seconds of waiting one level of priority is worth."""

DEFAULT_DEADLINE_SECONDS = 30
"""The deadline by which a request without one is ordered. It never fails for being late."""

TOKENS_PER_EXPECTED_TOKEN = 64
"""How far a longer job is put behind, in tokens computed by the engine for each token that it is expected to take.

In a batch of this many sequences a job runs for about as long as it is put behind. In simulated bursts
(benchmarks/scheduling) a mean wait of 1.9 s becomes 1.8 s from 8 to 64, and stays that up to 4096 while the 99th
percentile grows from 10 over 13 to 14 s.
"""

TOKENS_PER_CACHED_TOKEN = 64
"""How far a cached prefix brings a request ahead, in tokens computed by the engine for each cached token.

In the simulated traffic of many tenants (benchmarks/scheduling) 4 makes 62 % hits, 16 77 %, 64 89 %, 256 90 %.
"""

REFRESHES = 16
"""Waiting sequences whose cached prefix is looked up again in each step."""


class Policy(Protocol):
    """Computes the order key of sequences: the lowest is admitted first, the highest is preempted first.

    Two sequences never share an order key, and later arrivals must in the long run have higher ones, or a sequence
    starves. A key is computed when a request arrives; with `refreshes` above 0 it is computed again for that many
    waiting sequences in each step, and never while a sequence runs. With `preempts`, a running sequence is preempted
    for a waiting one with a lower key.

    Order keys are positions on a line that moves on for all sequences at the same speed (arrivals, time, or tokens
    computed), and a policy moves what it favours ahead by a bounded distance. So no key has to be computed again
    because time has passed, a key costs O(1), and no sequence starves: one that arrives later than that distance is
    behind. `docs/scheduling.md` says which policy is for whom.
    """

    preempts: bool
    refreshes: int

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """The sequence's order key."""

    def learn(self, sequence: SequenceState) -> None:
        """Take note of a sequence that has come to its end."""


class _Static:
    """Most policies: order keys that do not change, no preemption for a newcomer, nothing to learn."""

    preempts = False
    refreshes = 0

    def learn(self, sequence: SequenceState) -> None:
        """Nothing: the order does not depend on it."""


class FirstComeFirstServed(_Static):
    """By arrival."""

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """The number of requests that came before."""
        return (sequence.queue.arrival,)


class ByPriority(_Static):
    """The lowest `priority` first; a level is worth `PRIORITY_SECONDS` of waiting, so the others get their turn."""

    preempts = True

    def __init__(self, level_ns: int = PRIORITY_SECONDS * SECOND_NS) -> None:
        self._level_ns = level_ns

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """The arrival in nanoseconds, later by so much for each level."""
        queue = sequence.queue
        return queue.arrived_ns + sequence.context.params.priority * self._level_ns, queue.arrival


class EarliestDeadline(_Static):
    """The earliest `deadline` first."""

    preempts = True

    def __init__(self, default_ns: int = DEFAULT_DEADLINE_SECONDS * SECOND_NS) -> None:
        self._default_ns = default_ns

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """The time, in nanoseconds, by which the first token is wanted."""
        queue = sequence.queue
        return (queue.arrived_ns + self._default_ns if queue.due_ns is None else queue.due_ns), queue.arrival


class ShortestJob(_Static):
    """The fewest tokens first: the prompt's and, of the answer's, as many as `max_tokens` and experience say."""

    def __init__(self, stretch: int = TOKENS_PER_EXPECTED_TOKEN) -> None:
        self._lengths = LengthEstimator()
        self._stretch = stretch

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """The engine's tokens at the arrival, later by a multiple of what the request is expected to take."""
        expected = sequence.prompt_len + self._lengths.expect(sequence)
        return sequence.queue.arrived_tokens + self._stretch * expected, sequence.queue.arrival

    def learn(self, sequence: SequenceState) -> None:
        """Remember how long the answer was."""
        self._lengths.learn(sequence)


class LongestPrefix(_Static):
    """The longest cached prefix first, before the cache needs its blocks for something else."""

    refreshes = REFRESHES

    def __init__(self, worth: int = TOKENS_PER_CACHED_TOKEN) -> None:
        self._worth = worth

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """The engine's tokens at the arrival, earlier by a multiple of what is cached."""
        queue = sequence.queue
        return queue.arrived_tokens - self._worth * queue.cached_tokens, queue.arrival


POLICIES: dict[str, type[Policy]] = {
    "fcfs": FirstComeFirstServed,
    "priority": ByPriority,
    "sjf": ShortestJob,
    "prefix": LongestPrefix,
    "deadline": EarliestDeadline,
}


def new_policy(name: str) -> Policy:
    """The policy of a name that `EngineConfig.policy` allows."""
    return POLICIES[name]()
