"""Torch parts that ops call, and the contracts of attention and states."""
