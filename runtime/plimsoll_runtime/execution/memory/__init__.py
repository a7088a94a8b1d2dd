"""How much memory there is, and what the KV cache and the largest step get of it."""
