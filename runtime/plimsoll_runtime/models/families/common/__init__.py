"""What families share. The folder above has architectures only."""
