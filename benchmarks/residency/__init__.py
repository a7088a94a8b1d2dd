"""The loading cost of residency's planner: the real planner over a simulated host."""
