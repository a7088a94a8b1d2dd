"""The cost of a step apart from arithmetic."""
