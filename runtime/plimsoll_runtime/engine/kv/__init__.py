"""KV cache management in names and numbers: block pool, prefix cache, cache groups, state snapshots."""
