"""Input and output of the planner."""
