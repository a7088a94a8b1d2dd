"""Compares kernels and steps with a GPU's limits, on the shape of a model of 8 billion parameters."""
