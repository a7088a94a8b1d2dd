"""What lowers the token budget of a step: decodes that must not wait on a CPU, and a step that ran out of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from plimsoll_runtime.engine.limits import Limits
from plimsoll_runtime.engine.protocol.plan import StepPlan

DECODES_PER_NEWCOMER = 4
"""With at least this many decodes for each new prompt, prompts are cut into small chunks. With fewer it is a burst."""
STEPS_ALONE = 3
"""In a burst this many steps hold prompts only, then one step holds decodes as well. When a burst is over, one more
round of these steps computes its last prompts."""
PROMPT_TOKENS_PER_DECODE = 1.5
LEAST_PROMPT_TOKENS = 64
"""Where prompts are cut into small chunks: prompt tokens of a step for each decode, and at least."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The tokens of a step. With `alone` it holds prompts only, if they fill it."""

    tokens: int
    alone: bool = False


class Pacer:
    """Decides the size of each step.

    Where many sequences decode, a few new prompts must not make a step many times as long: they are cut into small
    chunks. In a burst, where many prompts wait beside few decodes, small steps cost no more per token than large ones,
    and first tokens come sooner. Most steps of a burst leave decodes out, since each decoded token would delay
    the first token of every prompt that waits. The last prompts of a burst are few beside the decodes, and still get
    steps of their own: the decodes wait for them a little longer.
    """

    def __init__(self, limits: Limits) -> None:
        self._paced = limits.paced
        self._most = limits.max_batch_tokens
        self._burst = min(limits.burst_tokens, limits.max_batch_tokens)
        # A small --max-batch-tokens asks for short waits between tokens: decodes wait for two full steps at most.
        self._alone = min(STEPS_ALONE, 2 * self._most // self._burst - 1) if self._burst < self._most else 0
        self._held = 0
        self._left = 0

    def next(self, decodes: int, newcomers: int) -> Pace:
        """The size of a step for `decodes` tokens of sequences that decode, and `newcomers` with prompts to compute."""
        if not newcomers or not self._paced:
            self._left = 0
            return Pace(self._most)
        if decodes < DECODES_PER_NEWCOMER * newcomers:
            self._left = self._alone + 1
        if not self._left:
            prompts = max(LEAST_PROMPT_TOKENS, int(PROMPT_TOKENS_PER_DECODE * decodes))
            return Pace(min(self._most, decodes + prompts))
        self._left -= 1
        if self._held < self._alone:
            return Pace(self._burst, alone=True)
        self._held = 0
        return Pace(min(self._most, decodes + self._burst))

    def had_it_alone(self, *, filled: bool) -> None:
        """Note whether prompts filled a step that was theirs alone."""
        self._held = self._held + 1 if filled else 0


GOOD_STEPS = 32
MOST_GOOD_STEPS = 2**14
"""After so many steps of a size, twice as many tokens are tried; after twice as many steps each time that these find no
memory, up to the most: where no prefix is cached, a sequence begins anew each time, and has to come to its end."""


class StepMemoryError(Exception):
    """A runner has too little memory for what a plan computes; it can go on.

    What the plan moves is done, and slots are taken and freed as it says. Of what it computes nothing counts.
    """


def moved_only(plan: StepPlan) -> StepPlan:
    """What is still done of a plan when the one before it was not computed: blocks that move, and slots."""
    return replace(plan, sequences=(), resumes=(), snapshots=())


class SmallSteps:
    """In the place of a Pacer: steps of so many `tokens`, and of twice as many after some good ones, up to `most`.

    `longest` says how many tokens the first in line must have at once, where prompts are computed whole; else 0.

    The memory of the KV cache is taken at the start, so preempting a sequence frees none of the device's. What a step
    takes besides grows with its tokens. So steps are small for a while after a shortage, and then grow again.
    """

    def __init__(self, tokens: int, most: int, longest: Callable[[], int]) -> None:
        self._tokens = tokens
        self._most = most
        self._longest = longest
        self._planned = 0
        self._patience = GOOD_STEPS
        self._grown = False

    def shrink(self, tokens: int) -> None:
        """There was no memory for these steps either: plan such ones."""
        if self._grown:
            self._patience = min(2 * self._patience, MOST_GOOD_STEPS)
        self._tokens, self._planned, self._grown = tokens, 0, False

    def next(self, decodes: int, newcomers: int) -> Pace:
        """See Pacer."""
        self._planned += 1
        if self._planned > self._patience:
            self._tokens, self._planned, self._grown = min(2 * self._tokens, self._most), 1, True
        return Pace(max(self._tokens, self._longest()))

    def had_it_alone(self, *, filled: bool) -> None:
        """See Pacer. No step holds prompts alone."""
