"""Options of the whole suite."""

from __future__ import annotations

from hypothesis import settings

# `--hypothesis-profile ci` draws the same examples in every run. Else each run draws others, and finds what is rare.
settings.register_profile("ci", derandomize=True)
