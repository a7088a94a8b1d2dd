"""An hour of mixed load: what leaks, drifts or answers differently only after a long time."""
