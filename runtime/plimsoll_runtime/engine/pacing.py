"""How many tokens a step takes of prompts beside those that decode: on some devices each of them costs time."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.limits import Limits

DECODES_PER_NEWCOMER = 4
"""Where at least so many decode for each newcomer, the newcomers' prompts are cut small; else it is a burst."""
STEPS_ALONE = 3
"""Of a burst: prompts fill them alone, then all take part in one; so many and one are left to its last prompts."""
PROMPT_TOKENS_PER_DECODE = 1.5
LEAST_PROMPT_TOKENS = 64
"""Of prompts that are cut small: so many for each that decodes, and so many at least."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The tokens of a step, and whether prompts may have it alone if they fill it."""

    tokens: int
    alone: bool = False


class Pacer:
    """Decides step by step.

    Beside many that stream their answers a few newcomers must not take a step many times as long. While more come than
    decode, small steps cost no more than large ones by the token, and the first tokens come sooner. Those that decode
    are left out of most of them: each of their tokens would delay the first one of all who still wait. The last of a
    burst are few beside those that decode by then, but the next tokens of these can wait for so few a little longer.
    """

    def __init__(self, limits: Limits) -> None:
        self._paced = limits.paced
        self._most = limits.max_batch_tokens
        self._burst = min(limits.burst_tokens, limits.max_batch_tokens)
        # Whoever wants small steps wants no long waits between tokens: two full ones at most.
        self._alone = min(STEPS_ALONE, 2 * self._most // self._burst - 1) if self._burst < self._most else 0
        self._held = 0
        self._left = 0

    def next(self, decodes: int, newcomers: int) -> Pace:
        """For a step in which so many could decode, and so many have a prompt under way or could begin with one."""
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
        """What became of a step that prompts could have alone."""
        self._held = self._held + 1 if filled else 0
