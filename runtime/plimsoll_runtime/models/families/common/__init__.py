"""what families share; the folder above has architectures only."""
