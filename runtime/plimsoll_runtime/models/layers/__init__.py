"""Torch modules that ops call, and the contracts of attention and states."""
