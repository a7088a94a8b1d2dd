"""Choosing tokens for a batch: one pass over the logits, however the requests' parameters differ."""
