"""Reasoning: how models write what they think, and how it is told apart from what they answer."""
