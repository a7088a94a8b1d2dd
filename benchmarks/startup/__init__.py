"""Time from the start of a server to its first token."""
