"""Calls of tools: how models write them, what is read of that, and how a grammar keeps them valid."""
