"""Child processes of a laptop run."""
