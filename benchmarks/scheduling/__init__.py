"""Compares scheduling policies: the real scheduler with a cost model of the engine."""
