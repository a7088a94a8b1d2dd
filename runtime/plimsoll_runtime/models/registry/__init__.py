"""Finds the family and the task of a checkpoint."""
