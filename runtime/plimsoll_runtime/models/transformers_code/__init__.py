"""Models that run on Transformers code: with our KV cache, or with their own caches."""
