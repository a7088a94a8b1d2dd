"""Thousands of requests that nobody would write, at every endpoint of real servers: what breaks, hangs or is kept."""
