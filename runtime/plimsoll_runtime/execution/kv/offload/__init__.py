"""Tiers below the device's KV cache: the bytes."""
