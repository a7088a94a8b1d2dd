"""Paged attention over one vector a token, which is the key and the value of all heads."""
