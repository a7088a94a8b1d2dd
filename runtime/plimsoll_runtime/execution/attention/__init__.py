"""Attention over the paged cache, one module a backend."""
