"""Measures memory and divides it between the KV cache and the largest step."""
