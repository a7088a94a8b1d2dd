"""Samples tokens for a batch: one pass over the logits, although the requests' parameters differ."""
