"""Weights in memory that outlives the process that loaded them: the image from which a model wakes."""
