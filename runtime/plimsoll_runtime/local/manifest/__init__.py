"""what the API server would do with a file."""
