"""Models without a program of ours: Transformers' own code computes them, with our attention over the paged cache."""
