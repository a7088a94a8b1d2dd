"""Tiers below the device's KV cache, as names and numbers."""
