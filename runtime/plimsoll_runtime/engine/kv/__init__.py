"""KV cache management as names and numbers: block pool, prefix cache, cache groups, state snapshots."""
