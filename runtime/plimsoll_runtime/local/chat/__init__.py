"""Talking to a model from a terminal: a chat, or one question."""
