"""From a request to a sequence: its limits in tokens, its seed, and where it stands in line."""

from __future__ import annotations

import random
from collections.abc import Callable

from plimsoll_runtime.engine.allocator import KvAllocator
from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.messages import AddRequest
from plimsoll_runtime.engine.policy import SECOND_NS, Policy
from plimsoll_runtime.engine.prompt import Prompt
from plimsoll_runtime.engine.sequence import SequenceState
from plimsoll_runtime.engine.statistics import Counters

SEED_BITS = 63


class Arrivals:
    """Makes sequences of requests. `clock` gives nanoseconds and is the one by which requests say when they came."""

    def __init__(
        self, limits: Limits, policy: Policy, kv: KvAllocator, counters: Counters, clock: Callable[[], int]
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._kv = kv
        self._counters = counters
        self._clock = clock
        self._seeds = random.Random()

    def sequence(self, request: AddRequest) -> SequenceState:
        """A sequence that has its rank; `limits.check_request` has refused what can never be served."""
        limits, params = self._limits, request.params
        prompt = Prompt.of(request.prompt_token_ids)
        prompt_len = len(prompt)
        max_tokens = limits.max_len if params.max_tokens is None else params.max_tokens
        stop_ids = frozenset(params.stop_token_ids)
        arrived_ns = request.arrived_ns or self._clock()
        sequence = SequenceState(
            request_id=request.request_id,
            params=params,
            seed=self._seeds.getrandbits(SEED_BITS) if params.seed is None else params.seed,
            arrival=self._counters.arrivals,
            prompt=prompt,
            prompt_len=prompt_len,
            min_len=prompt_len + params.min_tokens,
            max_len=min(prompt_len + max_tokens, limits.max_len),
            stop_ids=stop_ids if params.ignore_eos else stop_ids | limits.eos_token_ids,
            names=self._kv.root(request.cache_salt),
            prompt_logprobs=None if params.prompt_logprobs is None else [],
            arrived_ns=arrived_ns,
            arrived_tokens=self._counters.computed_tokens,
            due_ns=None if params.deadline is None else arrived_ns + int(params.deadline * SECOND_NS),
            second_text=request.second_text,
            told_whole=request.told_whole and params.logprobs is None,
        )
        self.rerank(sequence)
        self._counters.arrivals += 1
        return sequence

    def rerank(self, sequence: SequenceState) -> None:
        """Take its rank, anew where the policy says that it may have changed."""
        if self._policy.refreshes:
            sequence.prefix = self._kv.probe(sequence)
        sequence.rank = self._policy.rank(sequence)
