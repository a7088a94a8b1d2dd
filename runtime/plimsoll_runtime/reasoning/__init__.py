"""Reasoning formats: how models write their reasoning, and how it is separated from their output."""
