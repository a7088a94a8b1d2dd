"""The host's time for a step of a GPU."""
