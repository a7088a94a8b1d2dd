"""Rotary position embedding (Su et al., 2021) of queries and keys."""
