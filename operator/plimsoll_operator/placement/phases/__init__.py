"""The planner's phases, in order."""
