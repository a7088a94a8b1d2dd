"""Compares models on Transformers code in Plimsoll with Transformers' own `generate`."""
