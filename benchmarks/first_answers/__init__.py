"""Checks that the demo model's answers make sense: 20 questions, graded by exact substring."""
