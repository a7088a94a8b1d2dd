"""The number formats of the sampling kernels: ordered integers for logits, integer weights, bins."""
