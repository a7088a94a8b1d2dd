"""An engine's process, from both sides."""
