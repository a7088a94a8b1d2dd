"""Models on Transformers' own code beside Transformers' own `generate`."""
