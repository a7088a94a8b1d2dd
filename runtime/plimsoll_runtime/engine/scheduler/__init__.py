"""the scheduler and its parts."""
