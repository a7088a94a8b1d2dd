"""Tiers below the device's KV cache, in names and numbers."""
