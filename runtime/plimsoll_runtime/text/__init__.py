"""Tokenizers, chat templates, incremental detokenising, and stop strings."""
