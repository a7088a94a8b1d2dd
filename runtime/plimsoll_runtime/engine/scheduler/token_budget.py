"""Lowers the token budget of a step: so that decodes on a CPU do not wait, and after a step ran out of memory."""

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
"""If prompts are cut into small chunks: prompt tokens of a step for each decode, and their minimum."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The token budget of a step. With `alone` the step holds prompts only, if they fill it."""

    tokens: int
    alone: bool = False


class Pacer:
    """Decides the size of each step.

    While many sequences decode, a few new prompts must not make a step many times as long, so they are cut into small
    chunks. In a burst, when many prompts wait next to few decodes, small steps cost no more per token than large ones,
    and first tokens come sooner. Most steps of a burst leave decodes out, since each decoded token would delay the
    first token of every waiting prompt. The last prompts of a burst are few next to the decodes, and still get steps of
    their own: the decodes wait for them a little longer.
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
        """Return the budget of a step. `decodes`: the tokens that decoding sequences need; `newcomers`: the prompts
        that are being computed or could be admitted.
        """
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
        """Record whether prompts filled a step that contained prompts only."""
        self._held = self._held + 1 if filled else 0


GOOD_STEPS = 32
MOST_GOOD_STEPS = 2**14
"""After GOOD_STEPS steps of a size, twice as many tokens are tried. Each time that these find no memory, the number of
steps doubles, up to MOST_GOOD_STEPS: if no prefix is cached, a preempted sequence starts from its first token, and must
be able to finish."""


class StepMemoryError(Exception):
    """A runner has too little memory for the computation of a plan, and can continue with smaller ones.

    The plan's block moves are done, and its slots are taken and freed. Everything that it computes is discarded.
    """


def moved_only(plan: StepPlan) -> StepPlan:
    """Return the part of a plan that is done even if the step before it failed: block moves and slots."""
    return replace(plan, sequences=(), resumes=(), snapshots=())


class SmallSteps:
    """Replaces a Pacer after a shortage: steps of `tokens`, doubled after some good steps, up to `most`.

    `longest` returns how many tokens the first waiting sequence needs in one step, if prompts are computed whole; else
    0.

    The KV cache's memory is allocated at the start, so preempting a sequence frees no device memory. The rest of a
    step's memory grows with its tokens. So steps are small for a while after a shortage, and then grow again.
    """

    def __init__(self, tokens: int, most: int, longest: Callable[[], int]) -> None:
        self._tokens = tokens
        self._most = most
        self._longest = longest
        self._planned = 0
        self._patience = GOOD_STEPS
        self._grown = False

    def shrink(self, tokens: int) -> None:
        """Shrink steps to `tokens` after another shortage."""
        if self._grown:
            self._patience = min(2 * self._patience, MOST_GOOD_STEPS)
        self._tokens, self._planned, self._grown = tokens, 0, False

    def next(self, decodes: int, newcomers: int) -> Pace:
        """Same contract as `Pacer.next`."""
        self._planned += 1
        if self._planned > self._patience:
            self._tokens, self._planned, self._grown = min(2 * self._tokens, self._most), 1, True
        return Pace(max(self._tokens, self._longest()))

    def had_it_alone(self, *, filled: bool) -> None:
        """Do nothing: no step holds prompts only."""
