"""Arguments by whose values no sampling kernel is compiled: what differs between batches of one model."""

from __future__ import annotations

SIZES = ("stride", "tiles", "splits", "loops")
"""Whole numbers."""
ALIGNMENTS = ("logits", "temperature", "top_k", "top_p", "min_p", "uniform", "masked", "bits")
"""Pointers into what may be a part of a batch; that logits are aligned is a constant of the launch (ALIGNED)."""
