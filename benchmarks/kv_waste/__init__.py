"""The share of the allocated KV cache that has no tokens."""
