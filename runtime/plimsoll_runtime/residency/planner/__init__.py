"""pure: which models are awake."""
