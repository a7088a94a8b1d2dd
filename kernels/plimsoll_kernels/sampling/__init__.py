"""Samples a token for each row of logits: the largest, or one drawn by temperature, top-k, top-p and min-p."""
