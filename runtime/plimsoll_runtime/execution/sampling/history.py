"""Which tokens a sequence holds, and how often each was generated: what penalties read."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Distinct tokens in the order in which they came, with counts, as arrays that grow by one token a step."""

    def __init__(self, prompt_ids: Iterable[int], output_ids: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt_ids))}
        self._tokens = np.fromiter(self._places, dtype=np.int64)
        self._counts = np.zeros(self._tokens.size, dtype=np.float32)
        for token in output_ids:
            self.add(token)

    def add(self, token: int) -> None:
        """A token was generated."""
        place = self._places.setdefault(token, len(self._places))
        if place == self._tokens.size:
            spare = max(16, place)
            self._tokens = np.pad(self._tokens, (0, spare))
            self._counts = np.pad(self._counts, (0, spare))
        self._tokens[place] = token
        self._counts[place] += 1

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The distinct tokens of the prompt and the output `[N]`."""
        return self._tokens[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each was generated `[N]`; 0 for what only the prompt holds."""
        return self._counts[: len(self._places)]
