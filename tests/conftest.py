"""Options of the whole suite."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
"""The same examples in every run: `--hypothesis-profile ci`. Else each run draws others, and finds what is rare."""
