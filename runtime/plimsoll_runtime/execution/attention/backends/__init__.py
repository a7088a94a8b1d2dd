"""The attention backends, one module each."""
