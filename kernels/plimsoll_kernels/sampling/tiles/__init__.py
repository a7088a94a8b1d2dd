"""Reads all logits once: the largest logit and the weight of each tile of a row."""
