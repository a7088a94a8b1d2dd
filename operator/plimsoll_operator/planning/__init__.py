"""Observes objects and plans the next actions: pure functions with reasons."""
