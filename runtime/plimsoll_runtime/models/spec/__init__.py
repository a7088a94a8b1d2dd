"""Decoder specs: a transformer as data, with the facts of its config and nothing derived."""
