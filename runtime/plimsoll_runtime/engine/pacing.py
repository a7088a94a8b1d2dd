"""How many tokens a step takes of prompts beside those that decode: on some devices each of them costs time."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_runtime.engine.limits import Limits

DECODES_PER_NEWCOMER = 4
"""Where at least so many decode for each newcomer, the newcomers' prompts are cut small; else it is a burst."""
PROMPT_TOKENS_PER_DECODE = 2
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
    are left out of as many as make up one full step, so that their tokens come as often as beside full steps.
    """

    def __init__(self, limits: Limits) -> None:
        self._paced = limits.paced
        self._most = limits.max_batch_tokens
        self._burst = min(limits.burst_tokens, limits.max_batch_tokens)
        self._held = 0

    def next(self, decodes: int, newcomers: int) -> Pace:
        """For a step in which so many could decode, and so many have a prompt under way or could begin with one."""
        if not newcomers or not self._paced:
            return Pace(self._most)
        if decodes >= DECODES_PER_NEWCOMER * newcomers:
            prompts = max(LEAST_PROMPT_TOKENS, PROMPT_TOKENS_PER_DECODE * decodes)
            return Pace(min(self._most, decodes + prompts))
        if self._held + self._burst < self._most:
            return Pace(self._burst, alone=True)
        self._held = 0
        return Pace(min(self._most, decodes + self._burst))

    def had_it_alone(self, *, filled: bool) -> None:
        """What became of a step that prompts could have alone."""
        self._held = self._held + self._burst if filled else 0
