"""Log probabilities of chosen tokens and of the most likely ones."""
