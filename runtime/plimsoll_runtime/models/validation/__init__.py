"""Checks for contradictions within a checkpoint, with a warning or an error. docs/models.md has the table."""
