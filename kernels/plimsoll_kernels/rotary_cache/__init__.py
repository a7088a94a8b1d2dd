"""Prepares the projected queries, keys and values of a layer for attention: norms over heads, rotation, cache write."""
