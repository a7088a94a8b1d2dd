"""Statements of a checkpoint that contradict each other: which one counts, with a warning, or a refusal.

docs/models.md has the table of all pairs.
"""
