"""Attention over a paged key and value cache, and writing into it."""
