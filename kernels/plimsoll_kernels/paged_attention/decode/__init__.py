"""Paged attention of sequences with one new row each: bound by reading keys and values."""
