"""The cost of constraining outputs to a schema."""
