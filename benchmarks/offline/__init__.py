"""Compares `LLM.generate` with Plimsoll's server over many short requests."""
