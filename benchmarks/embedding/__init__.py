"""Embeddings of mixed texts, compared with sentence-transformers and the machine's limit."""
