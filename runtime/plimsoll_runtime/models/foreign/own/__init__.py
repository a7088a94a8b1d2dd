"""Models that attend, or remember, by themselves: Transformers' code with Transformers' own caches, one a sequence."""
