"""Tokenizers, chat templates, incremental detokenising, stop strings."""
