"""Logits as the sampling kernels see them: ordered integers, weights in whole numbers, bins."""
