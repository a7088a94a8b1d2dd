"""Attention on a CPU with our own kernels, and the steps that a fused decoder computes whole."""
