"""Checks for contradictions within a checkpoint, with a warning or an error. docs/tasks/models.md has the table."""
