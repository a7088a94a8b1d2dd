"""The tokens of the bins in which the filters end, and the logits at which they end."""
