"""Makes a synthetic day of requests to one model from a seed: a quiet night, two busy periods, and bursts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

HOUR = 3600.0
BURST_SECONDS = (120.0, 600.0)
BURST_FACTOR = (2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that arrives at `at` seconds, with the tokens of its prompt and of its output."""

    at: float
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Day:
    """A day of `hours` hours with `bursts` bursts. `busiest`: highest rate outside bursts, in requests a second.
    `prompt`, `answer`: median tokens of prompts and outputs.
    """

    hours: float = 24.0
    busiest: float = 1.5
    bursts: int = 16
    prompt: int = 400
    answer: int = 150

    def requests(self, seed: int) -> list[Request]:
        """Return the requests in order of arrival: a Poisson process of varying rate, thinned from one of the highest
        rate.
        """
        random = Random(f"day {seed}")
        rate, most = self.rate(random), self.busiest * BURST_FACTOR[1]
        return list(self._thinned(rate, most, random))

    def rate(self, random: Random) -> Callable[[float], float]:
        """Draw the bursts, and return a function: second of the day -> requests a second."""
        end = self.hours * HOUR
        bursts = [
            (random.uniform(0.25 * end, end), random.uniform(*BURST_SECONDS), random.uniform(*BURST_FACTOR))
            for _ in range(self.bursts)
        ]

        def at(second: float) -> float:
            height = self.busiest * _shape(second / end * 24)
            return height * max([1.0, *(factor for begin, long, factor in bursts if begin <= second < begin + long)])

        return at

    def _thinned(self, rate: Callable[[float], float], most: float, random: Random) -> Iterator[Request]:
        at, end = 0.0, self.hours * HOUR
        while (at := at + random.expovariate(most)) < end:
            if random.random() * most < rate(at):
                yield Request(at, _tokens(self.prompt, random), _tokens(self.answer, random))


def _shape(hour: float) -> float:
    """Return the share of the peak rate: little at night, two humps at 11:00 and 16:00."""
    humps = math.exp(-((hour - 11.0) ** 2) / 5.0) + math.exp(-((hour - 16.0) ** 2) / 6.0)
    night = 0.0 if hour < 5.0 else 0.02
    return night + 0.98 * min(1.0, humps)


def _tokens(median: int, random: Random) -> int:
    return max(1, min(8 * median, round(random.lognormvariate(math.log(median), 0.7))))
