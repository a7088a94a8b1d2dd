"""Contradictions of a checkpoint's statements: which one counts, with a warning or an error. docs/models.md has the
table.
"""
