"""Paged attention of sequences with several new rows: bound by the products."""
