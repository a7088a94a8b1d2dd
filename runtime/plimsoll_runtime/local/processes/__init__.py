"""Child processes of a laptop run: start, supervise, probe."""
