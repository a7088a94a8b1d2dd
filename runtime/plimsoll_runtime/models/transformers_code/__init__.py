"""Models that Transformers code computes: over our KV cache, or with caches of its own."""
