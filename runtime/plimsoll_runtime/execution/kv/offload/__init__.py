"""Moves KV blocks to and from the tiers below the device's cache."""
