"""Refusals, and their format in each API."""
