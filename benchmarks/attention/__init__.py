"""Compares paged attention with the machine's limits, and with torch's SDPA over dense keys and values."""
