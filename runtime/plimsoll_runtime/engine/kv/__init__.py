"""KV cache management by block hashes and numbers, without tensors: block pool, prefix cache, state snapshots."""
