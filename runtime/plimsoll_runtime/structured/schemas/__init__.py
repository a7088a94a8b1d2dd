"""Rewrites JSON Schemas of clients into schemas that a grammar can enforce."""
