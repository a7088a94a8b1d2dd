"""Input and output records of the planner."""
