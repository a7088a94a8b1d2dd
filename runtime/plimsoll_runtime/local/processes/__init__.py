"""child processes of a run."""
