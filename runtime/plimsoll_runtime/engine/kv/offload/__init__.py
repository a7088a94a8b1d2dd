"""Tiers below the device's KV cache, by block hashes and numbers, without tensors."""
