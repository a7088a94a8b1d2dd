"""Arguments for whose values no sampling kernel is specialised, because they differ between batches of one model."""

from __future__ import annotations

SIZES = ("stride", "tiles", "splits", "loops")
"""Integer arguments."""
ALIGNMENTS = ("logits", "temperature", "top_k", "top_p", "min_p", "uniform", "masked", "bits")
"""Pointer arguments, which may point into a part of a batch; the alignment of logits is a constant of the launch
(ALIGNED).
"""
