"""Compares this working tree with an earlier commit: `bench.py --against COMMIT`."""
