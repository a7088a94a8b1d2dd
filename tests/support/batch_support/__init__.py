"""Shared helpers for tests of batches."""
