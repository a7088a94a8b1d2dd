"""an engine's process, from both sides."""
