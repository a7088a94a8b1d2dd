"""The front of the queue, after removals and moves."""

from __future__ import annotations

import random

from builders import sequence_of
from simulated import VOCAB

from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.scheduler.waiting_queue import SLACK, WaitingQueue
from plimsoll_runtime.engine.sequence import Phase, QueueEntry, SequenceState


def sequence(arrival: int, rank: int) -> SequenceState:
    return sequence_of(SamplingParams(), QueueEntry(arrival, order_key=(rank, arrival)), [VOCAB - 1], 2)


def test_the_front_is_what_would_be_taken_first() -> None:
    rng = random.Random(0)
    queue, waiting = WaitingQueue(), []
    for arrival in range(200):
        waiting.append(sequence(arrival, rng.randint(0, 20)))
        queue.push(waiting[-1])
    for gone in rng.sample(waiting, 50):
        gone.phase = Phase.PREFETCHING
        queue.leave(gone)
        waiting.remove(gone)
    expected = sorted(waiting, key=lambda s: s.queue.order_key)
    assert queue.front(7) == expected[:7]
    assert queue.front(1000) == expected, "looking takes nobody away"
    assert [queue.pop() for _ in range(7)] == expected[:7]


def test_who_comes_back_at_the_same_rank_is_there_once() -> None:
    queue, first, second = WaitingQueue(), sequence(0, 1), sequence(1, 2)
    for each in (first, second):
        queue.push(each)
    first.phase = Phase.PREFETCHING
    queue.leave(first)
    assert queue.front(2) == [second]
    first.phase = Phase.WAITING
    queue.push(first)
    assert queue.front(3) == [first, second]
    queue.check_integrity()


def test_looking_at_the_front_is_bounded_work() -> None:
    queue = WaitingQueue()
    many = [sequence(arrival, 1) for arrival in range(10_000)]
    for each in many:
        queue.push(each)
    for each in many[1:-1]:
        each.phase = Phase.FINISHED
        queue.leave(each)
    assert len(queue) == 2
    assert queue.front(2) == [many[0]], f"{2 * 2 + SLACK} entries were looked at"
    assert (queue.pop(), queue.pop()) == (many[0], many[-1])


def test_who_waits_no_longer_is_not_kept() -> None:
    queue = WaitingQueue(update_key=lambda sequence: None)
    for arrival in range(100):
        queue.push(sequence(arrival, arrival % 7))
        if arrival % 2:
            queue.pop().phase = Phase.RUNNING
    for waiting in queue.front(20):
        waiting.phase = Phase.PREFETCHING
        queue.leave(waiting)
    queue.check_integrity()
    assert len(queue) == 30
    while queue.peek() is not None:
        queue.refresh(16)
        queue.pop().phase = Phase.RUNNING
    assert not queue._turns
    queue.check_integrity()
