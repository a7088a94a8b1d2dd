"""Processes the product of queries, keys and values for attention: norms over heads, rotation, cache write."""
