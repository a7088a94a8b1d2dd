"""Canaries: a new revision gets a share of requests first, and is rolled back if it answers worse."""
