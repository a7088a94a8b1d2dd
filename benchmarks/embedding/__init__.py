"""Vectors of mixed texts, beside sentence-transformers and the machine's limit."""
