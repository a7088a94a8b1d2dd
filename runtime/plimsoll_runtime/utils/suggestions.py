"""Suggests the word that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

COMPARED = 500
LONGEST = 200
"""Limits of candidates and of a word's characters: the time of comparing grows with both."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'status'?`, or "" if no known word is similar.

    >>> did_you_mean("statsu", ["serve", "status"])
    " Did you mean 'status'?"
    >>> did_you_mean("gpt-4o", ["gemma-3-270m"])
    ''
    """
    by_lower = {one.lower(): one for one in islice(known, COMPARED)}
    if len(word) > LONGEST or not (found := get_close_matches(word.lower(), by_lower, n=1, cutoff=0.7)):
        return ""
    return f" Did you mean '{by_lower[found[0]]}'?"
