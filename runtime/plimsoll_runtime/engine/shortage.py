"""A step for which the device has too little memory: what says so, what is still done of it, and smaller ones after it.

Memory for the KV cache is taken once and for all, so a sequence that gives way frees none of the device's. What a step
takes beside the cache grows with its tokens: after a shortage steps are small for a while, and then grow again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plimsoll_runtime.engine.pacing import Pace
from plimsoll_runtime.engine.plan import StepPlan

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
