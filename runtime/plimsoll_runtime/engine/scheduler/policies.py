"""Scheduling policies: order keys of sequences, and the expected lengths that some policies need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from plimsoll_runtime.engine.sequence import SequenceState

ENOUGH = 8
"""Outputs that must have ended in a group of similar requests before their mean length is used."""

MEMORY = 32
"""Outputs in the moving average of lengths: older ones lose weight, so that it follows changes of the traffic."""

SCALE = 1024


@dataclass(slots=True)
class _Mean:
    """A moving average in fixed point: `scaled` is SCALE times the mean."""

    count: int = 0
    scaled: int = 0

    def add(self, value: int) -> None:
        self.count += 1
        self.scaled += (value * SCALE - self.scaled) // min(self.count, MEMORY)


class LengthEstimator:
    """Mean output lengths of ended requests in three groupings: by prompt length and output limit (each by number of
    bits), by output limit, and of all. `expect` uses the first one with enough outputs.
    """

    def __init__(self) -> None:
        self._means: dict[tuple[int, ...], _Mean] = {}

    def expect(self, sequence: SequenceState) -> int:
        """Return the expected length of the output in tokens, at most its limit."""
        limit = sequence.max_len - sequence.prompt_len
        if sequence.context.params.ignore_eos and not sequence.stop_ids:
            return limit
        for kind in _kinds(sequence):
            mean = self._means.get(kind)
            if mean is not None and mean.count >= ENOUGH:
                return max(1, min(limit, mean.scaled // SCALE))
        return limit

    def learn(self, sequence: SequenceState) -> None:
        """Learn from an output that has ended. One that only its limit can end (`ignore_eos` without stop tokens) is
        skipped.
        """
        if sequence.context.params.ignore_eos and not sequence.stop_ids:
            return
        for kind in _kinds(sequence):
            self._means.setdefault(kind, _Mean()).add(len(sequence.output_ids))


def _kinds(sequence: SequenceState) -> tuple[tuple[int, ...], ...]:
    limit = (sequence.max_len - sequence.prompt_len).bit_length()
    return (limit, sequence.prompt_len.bit_length()), (limit,), ()


SECOND_NS = 1_000_000_000

PRIORITY_SECONDS = 10
"""Seconds of waiting that one level of priority is worth."""

DEFAULT_DEADLINE_SECONDS = 30
"""The deadline by which a request without one is ordered. The request never fails because of it."""

TOKENS_PER_EXPECTED_TOKEN = 64
"""How far a longer job is put behind, in tokens computed by the engine for each token that it is expected to take.

In a batch of this many sequences a job runs for about as long as it is put behind. In simulated bursts
(benchmarks/scheduling) the mean wait is 1.9 s at 8 and 1.8 s from 64 to 4096, while the 99th percentile grows from 10
to 13 and 14 s.
"""

TOKENS_PER_CACHED_TOKEN = 64
"""How far a cached prefix brings a request ahead, in tokens computed by the engine for each cached token.

In the simulated traffic of many tenants (benchmarks/scheduling) the hit rate is 62 % at 4, 77 % at 16, 89 % at 64, 90 %
at 256.
"""

REFRESHES = 16
"""Waiting sequences whose cached prefix is looked up again in each step."""


class Policy(Protocol):
    """Computes the order key of sequences: the lowest is admitted first, the highest is preempted first.

    Two sequences never share an order key, and later arrivals must in the long run have higher ones, or a sequence
    starves. A key is computed when a request arrives. With `refreshes` above 0 it is computed again for that many
    waiting sequences in each step, but never while a sequence runs. With `preempts`, a running sequence is preempted
    for a waiting one with a lower key.

    Order keys are positions on an axis along which all sequences move at the same speed (arrivals, time, or tokens
    computed). A policy moves favoured sequences ahead by a bounded distance. So keys do not change with time, a key
    costs O(1), and no sequence starves: a sequence that arrives later than that distance is behind.
    `docs/concepts/scheduling.md` says when to use which policy.
    """

    preempts: bool
    refreshes: int

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """Return the sequence's order key."""

    def learn(self, sequence: SequenceState) -> None:
        """Record a sequence that has ended."""


class _Static:
    """Base of most policies: order keys do not change, no preemption for a new sequence, nothing to learn."""

    preempts = False
    refreshes = 0

    def learn(self, sequence: SequenceState) -> None:
        """Do nothing: the order does not depend on ended sequences."""


class FirstComeFirstServed(_Static):
    """Orders by arrival."""

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """Return the number of requests that arrived before."""
        return (sequence.queue.arrival,)


class ByPriority(_Static):
    """Lowest `priority` first. One level is worth `PRIORITY_SECONDS` of waiting, so no request starves."""

    preempts = True

    def __init__(self, level_ns: int = PRIORITY_SECONDS * SECOND_NS) -> None:
        self._level_ns = level_ns

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """Return the arrival in nanoseconds plus a fixed time for each level."""
        queue = sequence.queue
        return queue.arrived_ns + sequence.context.params.priority * self._level_ns, queue.arrival


class EarliestDeadline(_Static):
    """Earliest deadline first. A request without one is ordered as if it had DEFAULT_DEADLINE_SECONDS."""

    preempts = True

    def __init__(self, default_ns: int = DEFAULT_DEADLINE_SECONDS * SECOND_NS) -> None:
        self._default_ns = default_ns

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """Return the time in nanoseconds at which the first token is due."""
        queue = sequence.queue
        return (queue.arrived_ns + self._default_ns if queue.due_ns is None else queue.due_ns), queue.arrival


class ShortestJob(_Static):
    """Fewest tokens first: those of the prompt plus the expected output (by `max_tokens` and past outputs)."""

    def __init__(self, stretch: int = TOKENS_PER_EXPECTED_TOKEN) -> None:
        self._lengths = LengthEstimator()
        self._stretch = stretch

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """Return the engine's computed tokens at arrival plus a multiple of the request's expected tokens."""
        expected = sequence.prompt_len + self._lengths.expect(sequence)
        return sequence.queue.arrived_tokens + self._stretch * expected, sequence.queue.arrival

    def learn(self, sequence: SequenceState) -> None:
        """Record the length of the output."""
        self._lengths.learn(sequence)


class LongestPrefix(_Static):
    """Longest cached prefix first, before its blocks are evicted."""

    refreshes = REFRESHES

    def __init__(self, worth: int = TOKENS_PER_CACHED_TOKEN) -> None:
        self._worth = worth

    def order_key(self, sequence: SequenceState) -> tuple[int, ...]:
        """Return the engine's computed tokens at arrival minus a multiple of the cached tokens."""
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
    """Return a new policy by its name in `EngineConfig.policy`."""
    return POLICIES[name]()
