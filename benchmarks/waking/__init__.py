"""Time from a wake request for a sleeping model to its first token."""
