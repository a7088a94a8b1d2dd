"""Counts tokens and weight by distance from the largest logit, and finds the bins in which filters end."""
