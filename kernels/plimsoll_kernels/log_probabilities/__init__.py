"""Log probabilities of sampled tokens and of the most likely ones."""
