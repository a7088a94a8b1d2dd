"""Refusals, and their forms in each API."""
