"""What does residency's planner pay in loading? The real planner over a simulated host."""
